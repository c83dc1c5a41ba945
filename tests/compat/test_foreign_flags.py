"""Each option of `vllm serve`, llama-server and llama-cli is taken, translated, or refused by name.

The lists are those of their sources (benchmarks/foreign_flags.py writes them).
"""

from __future__ import annotations

from argparse import Action
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.cli import chat, foreign_options, generate, serve
from quire.cli.dotted_options import with_joined_members
from quire.cli.foreign_options import SCOPES, flags_of
from quire.compat import name_homes
from quire.compat.name_homes import DEFAULTS
from quire.compat.names_table import rows_of
from quire.errors import ConfigError
from quire.models.config.sampling_defaults import read_sampling_defaults
from quire.server.settings import ServerSettings

# how many options each list has at least, and the commands that its options are given to
LISTS = {
    "vllm": (300, (serve,)),
    "llama_server": (250, (serve,)),
    "llama_cli": (150, (generate, chat)),
}
OLLAMA_RUN = ["--format=", "--insecure", "--keepalive=", "--nowordwrap", "--hidethinking"]
VLLM_CHAT = ["--url=", "--model-name=", "--system-prompt=", "--quick=", "--stats"]


def options(name: str) -> list[tuple[list[str], bool]]:
    """Each option's flags, and whether a value follows."""
    lines = (Path(__file__).parent / f"flags_of_{name}.txt").read_text().splitlines()
    return [([word.rstrip("=") for word in line.split()], "=" in line) for line in lines]


def faults(flag: str, has_value: bool, actions: dict[str, Action]) -> Iterator[str]:
    own = foreign_options.OWN_FLAGS.get(flag, flag)
    row = foreign_options.row_of(own)
    if own in actions:
        if actions[own].nargs != "?" and (actions[own].nargs != 0) != has_value:
            yield f"{flag}: {'a' if has_value else 'no'} value follows there"
    elif row is None:
        name = own.lstrip("-").replace("-", "_")
        if own != "--model" and name_homes.command_home(own, name, actions) is None:
            yield f"{flag} is unknown"
    elif row[0].arity != "optional" and (row[0].arity != "switch") != has_value:
        yield f"{flag}: {'a' if has_value else 'no'} value follows there"


@pytest.mark.parametrize("name", LISTS)
def test_every_option_is_known_as_it_is_written_there(name: str) -> None:
    listed, (least, commands) = options(name), LISTS[name]
    assert len(listed) >= least
    for command in commands:
        actions = command.make_parser()._option_string_actions
        found = [f for flags, has in listed for flag in flags for f in faults(flag, has, actions)]
        assert not found, "\n".join(found)


@pytest.mark.parametrize("name", LISTS)
def test_a_dot_in_a_name_begins_no_member(name: str) -> None:
    flags = [flag for each, _ in options(name) for flag in each]
    assert with_joined_members(flags) == flags


def test_an_option_with_several_numbers_takes_no_model() -> None:
    words = ["--cudagraph-capture-sizes", "1", "2", "4", "m/m", "--port", "1"]
    actions = serve.make_parser()._option_string_actions
    own, notices = foreign_options.own_argv(words, actions, takes_model=True)
    assert (own, len(notices)) == (["m/m", "--port", "1"], 1)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--enable-chunked-prefill=False"], ["--no-enable-chunked-prefill"]),
        (["--enable-chunked-prefill", "False"], ["--no-enable-chunked-prefill"]),
        (["--enforce_eager", "True", "m/m"], ["--enforce-eager", "m/m"]),
        (["--enforce-eager", "m/m"], ["--enforce-eager", "m/m"]),
        (["--enforce-eager=on"], ["--enforce-eager"]),
        (["--enforce-eager=maybe"], ["--enforce-eager=maybe"]),  # which is refused then
        (["--no-enforce-eager"], ["--no-enforce-eager"]),
    ],
)
def test_a_switch_may_have_a_value(words: list[str], own: list[str]) -> None:
    actions = serve.make_parser()._option_string_actions
    assert foreign_options.own_argv(words, actions, takes_model=True) == (own, [])


@pytest.mark.parametrize("value", ["none", "auto", "deepseek"])
def test_a_reasoning_format_is_a_parser_or_none(value: str) -> None:
    args = serve.make_parser().parse(["m", "--reasoning-format", value])
    assert getattr(args, "reasoning_parser", "auto") == ("none" if value == "none" else "auto")
    with pytest.raises(ConfigError, match=r"deepseek-legacy' is not supported: .*; use auto or"):
        serve.make_parser().parse(["m", "--reasoning-format=deepseek-legacy"])


@pytest.mark.parametrize("words", ["-c 9 -np 1", "-c 9 -np 4 -kvu", "--max-model-len 9 -np 4"])
def test_a_context_that_is_not_divided_needs_no_note(words: str) -> None:
    actions = serve.make_parser()._option_string_actions
    assert not foreign_options.own_argv(words.split(), actions, takes_model=True)[1]


def test_errors_name_options_as_they_were_given() -> None:
    parser = serve.make_parser()
    actions = parser._option_string_actions
    rows = [row for scope in ("engine", "server") for row in rows_of(scope)]
    own = {f: f"--{r.same_as}".replace("_", "-") for r in rows for f in foreign_options.flags_of(r)
           if r.same_as and r.others and r.arity == "value"}  # fmt: skip
    own |= {"--max_model_len": "--max-model-len", **foreign_options.OWN_FLAGS}
    given = {flag: option for flag, option in own.items() if option in actions}
    assert len(given) > 50
    for flag, option in given.items():
        name = option.lstrip("-").replace("-", "_")
        for argv in ([flag, "7"], [f"{flag}=7"]):
            text = parser.in_flags(f"{name} is 7; lower {option}", argv)
            assert text == f"{flag} is 7; lower {flag}"


@pytest.mark.parametrize("words", ["-ctk q8_0", "-ngl 0", "--no-enable-chunked-prefill", "-c 0"])
def test_errors_about_other_values_than_the_given_ones_name_own_options(words: str) -> None:
    found = serve.make_parser().in_flags(
        "kv_cache_dtype device='cpu' enable_chunked_prefill max_model_len", words.split()
    )
    assert found == "--kv-cache-dtype --device cpu --enable-chunked-prefill --max-model-len"


def test_a_key_may_follow_another() -> None:
    for words, keys, model in (
        (["m", "--api-key", "k1", "k2", "--port", "1"], "k1,k2", "m"),
        (["--api-key", "k1", "m"], "k1", "m"),
        (["--api-key", "k1", "k2", "m"], "k1,k2", "m"),
        (["m", "--api-key", "k1", "--api-key", "k2"], "k1,k2", "m"),
        (["m", "--api-key", "k1", "--api-key", "k2", "k3"], "k1,k2,k3", "m"),
        (["--api-key", "k1", "k2", "m", "--api-key", "k3"], "k1,k2,k3", "m"),
        (["--api-key", "k1", "--port", "1", "--api-key", "k2", "m"], "k1,k2", "m"),
        (
            ["--api-key", "k1", "k2", "--port", "1", "m", "--api-key", "k3", "k4"],
            "k1,k2,k3,k4",
            "m",
        ),
    ):
        args = serve.make_parser().parse(words)
        assert (args.api_key, args.model) == (keys, model)
    for words in (
        ["--config", "file", "--api-key", "k1", "m"],
        ["--api-key", "k1", "m", "--api-key", "k2", "k3"],
    ):
        with pytest.raises(ConfigError, match="--api-key with 2 values leaves open") as error:
            serve.make_parser().parse(words)
        assert "k1" not in str(error.value)


def test_an_option_may_repeat_another() -> None:
    actions = generate.make_parser()._option_string_actions
    for words, own in (
        (["--n", "3", "--best-of", "3"], ["--n", "3"]),
        (["--best-of=3", "--n=3"], ["--n=3"]),
    ):
        assert foreign_options.own_argv(words, actions, takes_model=True) == (own, [])
    for wrong in (["--best-of", "3"], ["--n", "2", "--best-of", "3"]):
        with pytest.raises(ConfigError, match=r"--best-of 3 is not supported: .*; use n"):
            foreign_options.own_argv(wrong, actions, takes_model=True)


@pytest.mark.parametrize("flag", [*OLLAMA_RUN, *VLLM_CHAT])
def test_options_of_commands_that_talk_are_known(flag: str) -> None:
    for command in (generate, chat):
        actions = command.make_parser()._option_string_actions
        assert not list(faults(flag.rstrip("="), "=" in flag, actions))


ALIASES = [
    flag
    for scope in SCOPES
    for row in rows_of(scope)
    if row.arity == "value" and (row.same_as or row.name in DEFAULTS)
    for flag in flags_of(row)
]


@pytest.mark.parametrize("value", ["zzz!", "-7", ""])
def test_errors_name_the_option_that_was_typed(value: str) -> None:
    parser = serve.make_parser()
    for flag in ALIASES:
        argv = ["quire-tiny", flag, value]
        try:
            (plan,) = serve.model_plans(parser.parse(argv), ServerSettings())
            read_sampling_defaults(plan.config)
        except ConfigError as error:
            said = parser.in_flags(str(error), argv)
            assert flag in said or "quire-tiny" in said, (flag, said)  # the model is named twice
