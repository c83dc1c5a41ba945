"""Members of JSON options by dots: one rule for all of them."""

from __future__ import annotations

import json

import pytest

from quire.cli.dotted_options import with_joined_members
from quire.cli.options import CommandParser
from quire.errors import ConfigError

FLAG = "--override-generation-config"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([f"{FLAG}.temperature", "0.2"], {"temperature": 0.2}),
        ([f"{FLAG}.top_k=3", f"{FLAG}.temperature", "0"], {"top_k": 3, "temperature": 0}),
        (["--override_generation_config.a.b", "x y"], {"a": {"b": "x y"}}),
        ([FLAG, '{"top_k": 2, "top_p": 1}', f"{FLAG}.top_k", "3"], {"top_k": 3, "top_p": 1}),
        ([f"{FLAG}.top_k", "3", f'{FLAG}={{"top_p": 1}}'], {"top_k": 3, "top_p": 1}),
        ([f"{FLAG}.list+", "a", f"{FLAG}.list+=b,c"], {"list": ["a", "b", "c"]}),
        ([f"{FLAG}.a.list", "[1]", f"{FLAG}.a.list+", "2"], {"a": {"list": [1, "2"]}}),
        (
            [FLAG, '{"l": ["a"], "o": {"p": 1}}', f"{FLAG}.l+", "b"],
            {"l": ["a", "b"], "o": {"p": 1}},
        ),
        ([f"{FLAG}.a.b", "1", f"{FLAG}.a", '{"c": 2}'], {"a": {"b": 1, "c": 2}}),
        ([f"{FLAG}.size", "1k", f"{FLAG}.bytes", "80G"], {"size": 1000, "bytes": 80 << 30}),
    ],
)
def test_members_are_joined(words: list[str], expected: dict[str, object]) -> None:
    parser = CommandParser("serve", "", [])
    parser.add_argument(FLAG)
    args = parser.parse(words)
    assert json.loads(args.override_generation_config) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--temp 0.6 --top-p=0.95 --top-k 20 --min-p 0 -n -1",
         {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0}),
        ("-n 512 --repeat-penalty 1.05", {"max_new_tokens": 512, "repetition_penalty": 1.05}),
        (f'--temperature 1 {FLAG} {{"top_k":2}} {FLAG}.top_p 1',
         {"temperature": 1, "top_k": 2, "top_p": 1}),
    ],
)  # fmt: skip
def test_defaults_of_requests_are_set_as_llama_server_sets_them(
    line: str, expected: dict[str, object]
) -> None:
    parser = CommandParser("serve", "", [])
    parser.add_argument(FLAG)
    assert json.loads(parser.parse(line.split()).override_generation_config) == expected


def test_a_default_of_requests_needs_a_value() -> None:
    parser = CommandParser("serve", "", [])
    parser.add_argument(FLAG)
    with pytest.raises(ConfigError, match="--top-p: its value is missing"):
        parser.parse(["--top-p"])


def test_other_words_stay() -> None:
    words = ["a.b", "--stop", "x", "--model=a.b", "--", f"{FLAG}.a", "1"]
    assert with_joined_members(words) == words


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([f"{FLAG}.a"], "its value is missing; write it after"),
        ([f"{FLAG}.a+"], "its value is missing"),
        ([f"{FLAG}.a", "--port", "1"], "its value is missing"),
        ([f"{FLAG}.a", "1", f"{FLAG}.a.b", "2"], "a has a value already"),
        ([f"{FLAG}.a.b", "1", f"{FLAG}.a", "2"], "a has a value already"),
        ([f"{FLAG}.a", "1", f"{FLAG}.a+", "2"], "a has a value already"),
        ([FLAG, "3", f"{FLAG}.a", "1"], "must be a JSON object"),
        (["--no-such-option.a", "1"], "unknown option --no-such-option"),
    ],
)
def test_what_cannot_be_joined_is_refused(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        CommandParser("serve", "", []).parse(words)
