"""Several models on the command line and in a file; errors name where the mistake is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.cli.foreign_options import flags_of
from quire.cli.models_file import ConfigFile
from quire.cli.serve import make_parser
from quire.cli.served_models import model_plans, read_config, server_settings
from quire.compat.name_homes import DEFAULTS
from quire.compat.names_table import rows_of
from quire.compat.own_options import OPTION_SCOPES
from quire.config import iter_options
from quire.engine.processes.fleet_model import ModelSpec
from quire.errors import ConfigError, FileError
from quire.models.config.sampling_defaults import read_sampling_defaults
from quire.options import Option, options_of
from quire.server.settings import ServerSettings


def plans(*words: str, **settings: str) -> list[ModelSpec]:
    args = make_parser().parse(words)
    read_config(args)
    return model_plans(args, ServerSettings(**settings))  # type: ignore[arg-type]


def read_models(path: Path, common: dict[str, Any]) -> list[ModelSpec]:
    return ConfigFile(str(path)).models(common, "at_start")


OPTIONS = [option for _, option in iter_options()] + list(options_of(ServerSettings))
# strings that mean something
WORDS = {
    "api_key": "abcdefghijklmnop",
    "admin_api_key": "abcdefghijklmnop",
    "allowed_hosts": "a.example",
    "allowed_origins": "http://a.example",
    "default_chat_template_kwargs": '{"enable_thinking": false}',
    "kv_cache_dtype_skip_layers": "sliding_window",
    "override_generation_config": '{"top_k": 3}',
    "quantization_overrides": "lm_head=int8",
    "root_path": "/llm",
    "max_num_batched_tokens": "300",
    "max_held_body_bytes": "8388608",
    "otlp_traces_endpoint": "http://127.0.0.1:4318/v1/traces",
}
NEEDS_ANOTHER = {"admin_port"}


def settings_of(*words: str) -> tuple[Any, ...]:
    """What a command line asks for, or what is wrong with it."""
    try:
        args = make_parser().parse(words)
        read_config(args)
        settings = server_settings(args)
        return settings, model_plans(args, settings)
    except ConfigError as error:
        return ("refused", str(error).replace("-", "_"))


def other_value(option: Option) -> str:
    """A value that is not the option's default, as a command line has it."""
    if option.name in WORDS:
        return WORDS[option.name]
    if option.choices:
        return next(str(each) for each in option.choices if each not in (option.default, "none"))
    if option.kind is str:
        return "quire-tiny-draft"
    least, most = option.within or (0, 64)
    if option.kind is float:
        return str(min(0.5, most))
    return str(max(least, min(most, 32)))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_means_the_same_in_a_file(option: Option, tmp_path: Path) -> None:
    flag, file = "--" + option.name.replace("_", "-"), tmp_path / "config.yaml"
    if option.kind is bool:
        value = str(not option.default).lower()
        words = [flag if not option.default else f"--no-{flag[2:]}"]
    else:
        value = other_value(option)
        words = [value] if option.name == "model" else [f"{flag}={value}"]
    by_words = settings_of(*words)
    for name in (option.name, flag[2:]):
        file.write_text(f"{name}: {value}\n")
        assert settings_of("--config", str(file)) == by_words
    assert (by_words[0] == "refused") == (option.name in NEEDS_ANOTHER), by_words
    assert by_words != settings_of()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("no-enable-prefix-caching: true", ["--no-enable-prefix-caching"]),
        ("no_access_log: True", ["--no-access-log"]),
        ("no-enforce-eager: false", ["--enforce-eager"]),
        ("no-enable-log-requests: true", []),  # another engine's switch
        ("no-mmap: true", []),
        ("no-port: true", ["--no-port"]),
    ],
)
def test_a_switch_may_stand_by_its_negative(line: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(line + "\n")
    found, expected = settings_of("--config", str(file)), settings_of(*words)
    assert (found[0], expected[0]) == ("refused", "refused") or found == expected


@pytest.mark.parametrize("line", ["dry-run: true", "json: true", "gpu_memory_gib: 80", "config: x"])
def test_an_option_of_a_run_is_for_the_command_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"model: quire-tiny\n{line}\n")
    name = line.partition(":")[0]
    with pytest.raises(ConfigError, match=f"line 2: {name} is for the command line alone"):
        plans("--config", str(file))


def test_one_model_as_ever() -> None:
    (plan,) = plans("./folder", "--served-model-name", "mine", "--num-blocks", "7")
    assert (plan.name, plan.at_start, plan.config.model.model) == ("mine", True, "./folder")
    assert plan.config.cache.num_blocks == 7
    assert plans()[0].name == "quire-tiny"
    (plan,) = plans("mine=./folder", "--num-blocks", "7")
    assert (plan.name, plan.config.model.model) == ("mine", "./folder")


def test_several_share_the_options(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    words = ("--model", "chat=quire-tiny", "--model", "org/small", "--model", str(odd))
    found = plans(*words, "--num-blocks", "9", model_load="on_demand")
    assert [plan.name for plan in found] == ["chat", "org/small", str(odd)]
    assert [plan.config.model.model for plan in found] == ["quire-tiny", "org/small", str(odd)]
    assert {plan.config.cache.num_blocks for plan in found} == {9}
    assert not any(plan.at_start for plan in found)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("quire-tiny", "--model", "b"), "use one of them"),
        (("--model", "a=x", "--model", "a=y"), "two models have the name 'a'"),
        (("--model", "=x"), "MODEL or NAME=MODEL"),
        (("--model", "a="), "MODEL or NAME=MODEL"),
        (("--model", "a=x", "--served-model-name", "b"), "--model NAME=MODEL"),
        (("max-model-len=4096",), "begins with --: --max-model-len 4096"),
        (("--config", "/nowhere.yaml"), "cannot be read"),
    ],
)
def test_wrong_words(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        plans(*words)


GOOD = """\
models:
  - name: chat
    model: quire-tiny
    kv_cache_memory_bytes: 2M
    enable_prefix_caching: false
    itl_target_ms: 50
  - model: quire-tiny-draft
    load: on_demand
    max_num_seqs: 4_0
"""


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(GOOD)
    first, second = read_models(file, {"max_num_seqs": 8, "seed": 5})
    assert (first.name, first.at_start) == ("chat", True)
    assert first.config.model.served_model_name == "chat"
    assert first.config.cache.kv_cache_memory_bytes == 2 << 20
    assert first.config.cache.enable_prefix_caching is False
    assert first.config.scheduler.itl_target_ms == 50
    assert (second.name, second.at_start) == ("quire-tiny-draft", False)
    assert (first.config.scheduler.max_num_seqs, second.config.scheduler.max_num_seqs) == (8, 40)
    assert second.config.model.seed == 5


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", None, "it has no options; write one a line, such as `port: 8000`, or leave --config"),
        ("# port: 1\n", None, "it has no options; write one a line, .* or leave --config out"),
        ("- a\n", None, "it has no options; write one a line, such as `port: 8000`$"),
        ("models:\n", 1, "models must be a list"),
        ("models: []\n", 1, "models must be a list"),
        ("host: !env HOST\n", 1, "host has the tag '!env'; write plain values"),
        ("api-key: [a, !vault b]\n", 1, "api-key has the tag '!vault'; write plain values"),
        ("api-key: !secret a\n", 1, "api-key has the tag '!secret'; write plain values"),
        ("api-key:\n", 1, "api-key has an empty key; set a key, or leave it out"),
        ("host: a\nadmin-api-key: null\n", 2, "admin-api-key has an empty key; set a key"),
        ("modls: x\n", 1, "unknown option modls; did you mean models?"),
        ("port: 70000\n", 1, "port must be between 0 and 65535, not 70000"),
        ("zzz: 1\n", 1, "unknown option zzz; leave it out; `quire serve --help` lists all"),
        ("host: a\ntemp: abc\n", 2, r": temp: must be a number, not 'abc'"),
        ("repeat-penalty: 0\n", 1, ": repeat-penalty: must be > 0"),
        ("n_predict: 0\n", 1, ": n_predict: must be between 1 and"),
        ("models:\n- model: a\n  temp: x\n", 3, r"models\[0\]: temp: must be a number, not 'x'"),
        ("temp: 0\ntemperature: 1\n", 2, "temperature is set twice; remove one"),
        ("override-generation-config: [1]\ntop-k: 1\n", 1, "config must be one value"),
        ("np: 0\n", 1, "np must be between 1 and"),
        ("c: many\n", 1, "c must be an integer"),
        ("host: a\n-tp: 2\n", 2, "-tp 2 is not supported: a model runs on one device"),
        ("no-access-log: 3\n", 1, "no-access-log must be true or false, not 3"),
        ("server:\n  port: 9\n", 1, "server is not an option; write what it holds beside it"),
        ("presence_penalty: 1\n", 1, "presence_penalty is set by each request; send 'presence_p"),
        ("host: a\nmodel: x\nmodels: [{model: y}]\n", 2, "model and models both name models"),
        ("host: a\ntensor-parallel-size: 2\n", 2, "tensor-parallel-size 2 is not supported: a"),
        ("n_ctx: 8\nmax-model-len: 9\n", 2, "max-model-len is set twice"),
        ("host: a\nlog-level: [a]\n", 2, "log-level must be one"),
        ("host: a\nlog_level: [a]\n", 2, "log_level must be one"),
        ("model: a\nmax-seqs: 1\n", 2, "unknown option max-seqs; did you mean max-num-seqs?"),
        (
            "models:\n  - model: a\n    num-blocks: 1\n    kv-cache-memory-bytes: 9\n",
            3,
            r"models\[0\]: num-blocks and kv-cache-memory-bytes both set the KV",
        ),
        ("ctx-size: many\n", 1, "ctx-size must be an integer"),
        ("torch_dtype: int7\n", 1, "torch_dtype must be one of"),
        (
            "models:\n- model: a\n  num_batch: 2\n- model: b\n  max_num_batched_tokens: 2\n",
            3,
            r"models\[0\]: num_batch \(2\) is below max_num_seqs .*; raise num_batch",
        ),
        ("speculative-config: {a: 1}\n", 1, "speculative-config .* is not supported"),
        ("override_generation_config: {a: 1, a: 2}\n", 1, "config has a name twice; write plain"),
        ("models:\n  - quire-tiny\n", 2, r"models\[0\] must have fields"),
        ("models:\n  - name: a\n", 2, r"models\[0\] has no model"),
        ("models:\n  - model: a\n    num_block: 3\n", 3, "num_block; did you mean num_blocks?"),
        (
            "models:\n  - model: a\n    num_blocks: many\n",
            3,
            "num_blocks must be an integer such as",
        ),
        ("models:\n  - model: a\n    num_blocks: 0\n", 3, "num_blocks must be between 1 and"),
        ("models:\n  - model: a\n    num_blocks: [1]\n", 3, "num_blocks must be one value"),
        (
            "models:\n  - model: a\n    quantization_overrides: {lm_head: nf4}\n",
            3,
            "quantization_overrides must be a string, or a list of such, not {",
        ),
        ("models:\n  - model: a\n    dtype: int3\n", 3, "dtype must be one of"),
        (
            "models:\n  - model: a\n    alias: b\n    name: c\n",
            4,
            r"models\[0\]: name and alias both set its name; use one of them",
        ),
        (
            "models:\n  - model: a\n    port: 9\n",
            3,
            r"models\[0\]: port is for the whole server; write it outside of models",
        ),
        ("load_in_4bit: x\n", 1, "load_in_4bit 'x' is not supported; set it to true or false"),
        ("models:\n  - model: a\n\n    load: later\n", 4, "load must be one of at_start"),
        ("models:\n  - model: a\n    model: b\n", 3, "model is set twice"),
        ("models:\n  - model: a\n  - model: b\n    name: a\n", 3, "two models have the name 'a'"),
        ("models:\n  - model: a\n    max_num_seqs: 3\n    max_num_batched_tokens: 2\n", 4, "below"),
        ("models:\n  - model: a\n   name: [\n", 3, "it must be YAML"),
        ("models: [&x {model: [*x]}]\n", 1, "model must be one value"),
        ("models: &x\n  - {model: *y}\n", 2, "it must be YAML"),
        ("models: \x00", None, r"it has the character U\+0000, which YAML lacks; remove it"),
    ],
)
def test_mistakes_are_reported_with_their_line(
    text: str, line: int | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    where = "" if line is None else f", line {line}"
    with pytest.raises(ConfigError, match=problem) as caught:
        read_models(file, {})
    assert str(caught.value).startswith(f"{file}{where}: ")


def test_flags_of_other_engines_are_names_too(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("-np: 3\nc: 2K\n--no-access-log: true\nngl: 99\nfa: on\nm: quire-tiny\n")
    config = ConfigFile(str(file))
    values = {name: option.value for name, option in config.given.items()}
    assert values == {
        "max_num_seqs": 3, "max_model_len": 2048, "access_log": False, "model": "quire-tiny"
    }  # fmt: skip
    assert [note.partition(" ")[0] for note in config.notices] == ["ngl", "fa"]


def outcome(file: Path) -> str:
    try:
        read_models(file, {})
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("value", ["zzz!", "-7", "''", "[1]", "true"])
def test_errors_name_the_option_as_it_is_written(value: str, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    keys = {
        flag.lstrip("-")
        for scope in (*OPTION_SCOPES, "sampling")
        for row in rows_of(scope)
        if row.same_as in {each.name for each in OPTIONS} or row.name in DEFAULTS
        for flag in flags_of(row)
    }
    assert len(keys) > 60
    for key in keys:
        for written in (key, key.replace("-", "_")):
            file.write_text(f"model-load: at_start\n{written}: {value}\n")
            said = outcome(file)
            assert not said or said.startswith(f"{file}, line 2: {written}"), said


def test_defaults_of_requests_are_members_of_one_option(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(
        "temp: '0.5'\ntop-k: 1K\nrepeat_penalty: 1.1\nn_predict: -1\nmin-p:\n"
        "override-generation-config: {top_p: 0.9, temperature: 1}\n"
    )
    given = ConfigFile(str(file)).given["override_generation_config"].value
    expected = {"temperature": 0.5, "top_k": 1024, "repetition_penalty": 1.1, "top_p": 0.9}
    assert expected.items() <= json.loads(given).items()
    args = make_parser().parse(["--config", str(file), "--temp", "0.1"])
    read_config(args)
    members = json.loads(args.override_generation_config)
    assert (members["temperature"], members["top_k"]) == (0.1, 1024)
    (config,) = model_plans(args, ServerSettings())
    assert read_sampling_defaults(config.config) == expected | {"temperature": 0.1}


def test_an_option_of_the_command_line_is_named_as_such(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models:\n  - model: a\n    num_blocks: 3\n")
    with pytest.raises(ConfigError, match=r"^max_num_seqs must be between 1 and") as caught:
        read_models(file, {"max_num_seqs": 0})
    assert not isinstance(caught.value, FileError)
    file.write_text("models:\n  - model: a\n    num_blocks: 0\n")
    with pytest.raises(FileError, match=r"line 3: .*num_blocks must be between"):
        read_models(file, {"num_blocks": 5})


def test_what_loading_finds_has_its_line_too(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models:\n  - name: x\n    model: quire-tiny\n    max_model_len: 100K\n")
    (plan,) = read_models(file, {})
    error = plan.explain(ConfigError("max_model_len is 102400, but the model knows 4096; lower it"))
    assert str(error).startswith(f"{file}, line 4: models[0]: max_model_len is 102400")
    assert str(plan.explain(ConfigError("weights are damaged"))).startswith(f"{file}, line 2: ")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("the device has too little memory for this model; use a smaller one", 1),
        ("model files of 3 GB do not fit the port's host; use device='cpu'", 5),
        ("device is 'cuda', but PyTorch finds no GPU; use device='cpu'", 5),
        ("threads must be at most 8, not 9", 4),
        ("quantization w8a16 needs a Hopper GPU; take int8, or dtype='bfloat16'", 3),
        ("quantization 'int8' rounds the weights of the model; leave quantization out", 3),
    ],
)
def test_a_word_in_passing_is_not_an_option(tmp_path: Path, message: str, line: int) -> None:
    options = "quantization: int8\n", "threads: 9\n", "device: cuda\n"
    file = tmp_path / "models.yaml"
    file.write_text("models:\n  - model: quire-tiny\n    " + "    ".join(options))
    (plan,) = read_models(file, {})
    said = str(plan.explain(ConfigError(message)))
    assert said.startswith(f"{file}, line {max(2, line)}: models[0]: ")
    file.write_text("model: quire-tiny\n\n" + "".join(options))
    said = str(ConfigFile(str(file)).explained(ConfigError(message)))
    assert said.startswith(f"{file}, line {line}: " if line > 1 else message)


def test_the_command_reports_the_files_own_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "models.yaml"
    file.write_text("models:\n  - max_num_seqs: 3\n    model: ./missing\n    load: on_demand\n")
    assert main(["serve", "--config", str(file), "--port", "0"]) == 2
    err = capsys.readouterr().err
    assert err.endswith(
        f"error: {file}, line 2: models[0]: there is no folder './missing'; "
        "use a folder or a hub name\n"
    )
    assert main(["serve", "--config", str(file), "--port", "0", "--num-blocks", "0"]) == 2
    assert (
        capsys.readouterr().err == "error: --num-blocks must be between 1 and 2147483647, not 0\n"
    )
    file.write_text("models:\n  - model: quire-tiny\n    scheduling_policy: x\n")
    assert main(["serve", "--config", str(file)]) == 2
    assert "models[0]: scheduling_policy must be one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("seed: 1\nroot-path: x\n", [], "{file}, line 2: root-path must be a path such as /llm"),
        ("block_size: 17\n", [], "{file}, line 1: block_size must be a power of two, not 17"),
        (
            "tensor-parallel-size: 2\n",
            [],
            "{file}, line 1: tensor-parallel-size 2 is not supported: a model runs on one device; "
            "run one server for each GPU, or use quantization: fp8 to fit one\n",
        ),
        ("max_model_len: 9M\n", ["--dry-run"], "{file}, line 1: max_model_len is 9437184"),
        ("block_size: 16\n", ["--block-size", "17"], "--block-size must be a power of two"),
    ],
)
def test_mistakes_that_are_found_later_have_their_line(
    text: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    assert main(["serve", "--port", "0", "--config", str(file), *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message.format(file=file)}")


ALL = """\
# as other engines write it
model: quire-tiny
served-model-name: [tiny]
host: 127.0.0.1
port: 9000
api-key:
  - first
  - second
max_model_len: 2K
dtype: half
tensor-parallel-size: 1
trust-remote-code: true
uvicorn-log-level: critical
request_timeout: 60
enable-prefix-caching: false
"""


def test_every_option_may_stand_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(ALL)
    args = make_parser().parse(["--config", str(file), "--port", "0"])
    read_config(args)
    settings = server_settings(args)
    assert (settings.port, settings.api_key) == (0, "first,second")  # the command line wins
    assert (settings.log_level, settings.request_timeout) == ("error", 60)
    (plan,) = model_plans(args, settings)
    assert (plan.name, plan.config.model.model) == ("tiny", "quire-tiny")
    assert (plan.config.model.dtype, plan.config.model.max_model_len) == ("float16", 2048)
    assert not plan.config.cache.enable_prefix_caching
    err = capsys.readouterr().err
    assert err == "note: trust-remote-code has no effect: no code of a model's folder is ever run\n"
    assert plans("other", "--config", str(file))[0].config.model.model == "other"
    assert [p.name for p in plans("--model", "a=x", "--model", "b=y", "--config", str(file))] == [
        "a", "b",
    ]  # fmt: skip


def test_names_of_other_engines_mean_the_same_in_the_list_of_models(tmp_path: Path) -> None:
    file, own = tmp_path / "models.yaml", {option.name: option for _, option in iter_options()}
    rows = [row for scope in OPTION_SCOPES for row in rows_of(scope) if row.same_as in own]
    for row in (row for row in rows if row.same_as not in ("model", "served_model_name")):
        value = next(iter(row.values), other_value(own[str(row.same_as)]))
        line = json.dumps({row.name: value})[1:-1]
        file.write_text(f"model: a\nserved-model-name: a\n{line}\n")
        alone = settings_of("--config", str(file))
        file.write_text(f"models: [{{model: a, {line}}}]\n")
        listed = settings_of("--config", str(file))
        if alone[0] == "refused":  # by its value, of a model that is not there
            assert listed[0] == "refused", row.name
            assert "unknown option" not in listed[1]
        else:
            assert listed[1][0].config == alone[1][0].config, row.name


def test_a_name_and_a_load_of_null_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("models:\n  - model: quire-tiny\n    name: null\n    load: ~\n")
    (plan,) = plans("--config", str(file))
    assert (plan.name, plan.at_start) == ("quire-tiny", True)


def test_a_list_of_models_excludes_another_model(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("num_blocks: 7\nmodels:\n  - model: quire-tiny\n    served-model-name: a\n")
    (plan,) = plans("--config", str(file))
    assert (plan.name, plan.config.cache.num_blocks) == ("a", 7)
    for words in (["b"], ["--model", "b"]):
        with pytest.raises(ConfigError, match="exclude each other"):
            plans("--config", str(file), *words)


def test_a_dry_run_says_which_line_a_model_is_wrong_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a start does."""
    path = tmp_path / "models.yaml"
    path.write_text("models:\n  - model: quire-tiny\n  - model: quire-tiny\n    name: b\n"
                    "    quantization: gptq\n")  # fmt: skip
    assert main(["serve", "--dry-run", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}, line 5: models[1]: quantization is 'gptq', but the ")
    path.write_text(path.read_text() + "  - model: ./nowhere\n    name: c\n    load: on_demand\n")
    assert main(["serve", "--dry-run", "--config", str(path)]) == 2
    both = capsys.readouterr().err.splitlines()
    assert both[0] == said.splitlines()[0]
    assert both[1].startswith(f"error: {path}, line 6: models[2]: there is no folder './nowhere'")
