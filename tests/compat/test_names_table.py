"""The table of foreign names: its rows go together, and each kind of row does what it says."""

from __future__ import annotations

import ast
import asyncio
import re
import shlex
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from house_files import SOURCE, expect_none, nodes

from quire import AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine
from quire.cli import generate, main, quantize, serve
from quire.cli.foreign_options import OWN_FLAGS, SCOPES, flags_of
from quire.cli.sampling import CONSTRAINTS
from quire.compat import foreign_commands
from quire.compat.foreign_name import ANY, ForeignName
from quire.compat.names_table import (
    SCOPES as ALL_SCOPES,
)
from quire.compat.names_table import NoEffect, Own, Refused, Scope, meaning_of, rows_of
from quire.compat.own_options import OPTION_SCOPES, names_as_given
from quire.compat.own_values import OWN_VALUES, own_value
from quire.compress.recipe import METHODS
from quire.config import STORED_METHODS, EngineConfig, iter_options
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import SamplingParams
from quire.errors import ConfigError, InvalidRequestError, NoEffectWarning
from quire.llm import LLM
from quire.models.checkpoint_formats.config_readers import READERS
from quire.options import options_of
from quire.server.settings import ServerSettings

ENGINE = {option.name for _, option in iter_options()}
SERVER = {option.name for option in options_of(ServerSettings)}
SAMPLING = set(SamplingParams.__struct_fields__)
POOLING = set(PoolingParams.__struct_fields__)
OWN: dict[Scope, set[str]] = {
    "engine": ENGINE, "server": ENGINE | SERVER, "sampling": SAMPLING, "request": POOLING,
    "cli": {*CONSTRAINTS, "default_chat_template_kwargs", "chat", "skip_special_tokens"}
    | {action.dest for action in quantize.make_parser()._actions} - {"format"},  # two of that name
    "pooling": POOLING, "call": {"prompts", "data_1", "data_2"},
}  # fmt: skip
# fields of some routes: of /v1/score (chats have a `documents` of vLLM's), and of chats
FIELDS = {"queries", "documents", "reasoning_effort"}
ROWS = [(scope, row) for scope in ALL_SCOPES for row in rows_of(scope)]


def test_a_phrase_is_written_once() -> None:
    homes: dict[str, set[str]] = {}
    for path in (SOURCE / "compat").glob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                homes.setdefault(node.value, set()).add(path.name)
    texts = {text: files for text, files in homes.items() if len(text) >= 20 and " " in text}
    expect_none(
        f"{text!r} in {', '.join(sorted(files))}: write it in phrases.py alone"
        for text, files in texts.items()
        if len(files) > (1 if "phrases.py" in files else 2)
    )


@pytest.mark.parametrize(("scope", "row"), ROWS, ids=lambda value: getattr(value, "name", value))
def test_a_row_is_whole(scope: Scope, row: ForeignName) -> None:
    assert row.name not in OWN[scope], "Quire has this name itself"
    assert row.same_as is None or row.same_as in OWN[scope] | FIELDS, "there is no such setting"
    assert row.same_as or row.text, "say why"
    takes_all = row.takes is ANY or (row.same_as and row.others)
    assert takes_all or row.fix, "say what to do instead"
    for sentence in (row.text, row.fix):
        assert not sentence.endswith(".")
        assert sentence[:1].islower() or not sentence or re.match(r"[A-Z/]", sentence)


@pytest.mark.parametrize("scopes", [*((scope,) for scope in ALL_SCOPES), ("request", "sampling")])
def test_a_name_has_one_row(scopes: tuple[Scope, ...]) -> None:
    names = Counter(row.name for scope in scopes for row in rows_of(scope))
    assert [name for name, times in names.items() if times > 1] == []


def test_pooling_params_know_vllms_names() -> None:
    found = PoolingParams(task="embed", use_activation=False, dimensions=8)  # type: ignore[call-arg]
    assert found == PoolingParams(normalize=False, dimensions=8)
    with pytest.raises(InvalidRequestError, match=r"^task 'classify' is not supported: .* use"):
        PoolingParams(task="classify")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean 'dimensions'"):
        PoolingParams(dimension=8)  # type: ignore[call-arg]


@pytest.mark.parametrize("threads", [-1, 0])
def test_threads_may_be_left_to_the_engine(threads: int) -> None:
    assert EngineConfig.from_options(threads=threads) == EngineConfig()
    assert generate.make_parser().parse(["-p", "a", "-t", str(threads), "-n", "3"]).max_tokens == 3


def test_values_may_be_in_capitals() -> None:
    config = EngineConfig.from_options(dtype="BF16", kv_cache_dtype="FP8")
    assert (config.model.dtype, config.cache.kv_cache_dtype) == ("bfloat16", "fp8")
    assert serve.make_parser().parse(["--log-level", "DEBUG"]).log_level == "debug"


def test_a_flag_has_one_meaning() -> None:
    rows = [row for scope in SCOPES for row in rows_of(scope)]
    rows = [row for row in rows if row.name not in ("logits_processors", "stream_interval")]
    flags = Counter(flag for row in rows for flag in flags_of(row)) + Counter([*OWN_FLAGS])
    assert [flag for flag, times in flags.items() if times > 1] == []


def test_values_in_another_spelling_are_those_of_settings() -> None:
    options = {o.name: o for o in (*(o for _, o in iter_options()), *options_of(ServerSettings))}
    for name, values in OWN_VALUES.items():
        choices = METHODS if name == "method" else options[name].choices
        for foreign, own in values.items():
            assert choices is None or own in choices, (name, foreign)


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"dtype": "half"}, {"dtype": "float16"}),
        ({"n_ctx": 2048}, {"max_model_len": 2048}),
        ({"num_ctx": 2048, "max_model_len": 2048}, {"max_model_len": 2048}),
        ({"load_format": "safetensors", "quantization": None, "seed": None}, {}),
        ({"served_model_name": ["a"]}, {"served_model_name": "a"}),
        ({"served_model_name": ["a", "b"]}, {"served_model_name": "a,b"}),
        (
            {"override_generation_config": {"top_k": 3}},
            {"override_generation_config": '{"top_k": 3}'},
        ),
        ({"n_gpu_layers": 0}, {"device": "cpu"}),
        ({"disable_radix_cache": True}, {"enable_prefix_caching": False}),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, {"kv_cache_dtype": "int8"}),
        ({"tensor_parallel_size": 1, "trust_remote_code": False, "tokenizer_mode": "auto"}, {}),
        ({"enforce_eager": None, "max_num_seqs": None, "ctx_size": 0}, {}),
        (
            {"nnodes": 1, "profiler_config": {}, "enable_eplb": False},
            {},
        ),
    ],
)
def test_names_and_values_of_other_engines(options: dict[str, Any], same: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EngineConfig.from_options(**options) == EngineConfig.from_options(**same)


@pytest.mark.parametrize(
    "option",
    [{"async_scheduling": False}, {"use_mmap": False}, {"cache_ram": 0},
     {"trust_remote_code": True}, {"swap_space": 4}, {"disable_log_stats": True},
     {"n_gpu_layers": 99}, {"compilation_config": 3}],
)  # fmt: skip
def test_what_has_no_effect_warns_by_name(option: dict[str, Any]) -> None:
    with pytest.warns(NoEffectWarning, match=f"^{next(iter(option))} has no effect: ") as caught:
        assert EngineConfig.from_options(**option) == EngineConfig()
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "option", [{"async_scheduling": True}, {"use_mmap": True}, {"swap_space": 0}, {"mlock": False}]
)
def test_what_is_done_anyway_needs_no_warning(option: dict[str, Any]) -> None:
    assert EngineConfig.from_options(**option) == EngineConfig()  # warnings are errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tensor_parallel_size": 2}, r"^tensor_parallel_size 2 is not supported: a model runs"),
        ({"nnodes": 2}, r"^nnodes 2 is not supported: .*; run one server for each GPU"),
        (
            {"profiler_config": {"profiler": "torch"}},
            r"^profiler_config .* run quire profile MODEL",
        ),
        ({"enable_lora": True}, r"^enable_lora is not supported: .*; merge the adapter"),
        ({"cache_type_k": "q4_0"}, r"^cache_type_k 'q4_0' is not supported: .*'fp8' or 'int8'"),
        ({"n_ctx": 1, "max_model_len": 2}, "^n_ctx and max_model_len are one setting"),
        ({"served_model_name": ["a", "a"]}, "^served_model_name is 'a,a', which has a name twice"),
        ({"max_model_length": 1}, "did you mean 'max_model_len'"),
        (
            {"ctx_len": 1},
            "^unknown setting 'ctx_len'; leave it out; `quire serve",
        ),  # and not block_size
    ],
)
def test_what_is_not_there_is_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EngineConfig.from_options(**options)


def test_fields_of_requests() -> None:
    scopes: tuple[Scope, ...] = ("request", "sampling")
    assert isinstance(meaning_of("safety_identifier", "x", scopes), NoEffect)
    assert meaning_of("n_predict", -1, scopes) == Own("max_tokens", None)
    assert meaning_of("best_of", 1.0, scopes) == meaning_of("best_of", 1, scopes)
    assert isinstance(meaning_of("best_of", True, scopes), Refused)
    refused = meaning_of("previous_response_id", "resp_1", scopes)
    assert refused == Refused(
        "previous_response_id 'resp_1' is not supported: only /v1/responses stores answers",
        "send the whole conversation",
    )
    refused = meaning_of("truncation", True, ("call",))
    assert isinstance(refused, Refused)
    assert refused.fix == "use truncate_prompt_tokens; -1 keeps as many as fit", "it is whole"
    assert meaning_of("temprature", 1, scopes) is None


def test_messages_name_what_exists() -> None:
    """Settings and sampling params that a row's text or fix names are Quire's own."""
    known = ENGINE | SERVER | SAMPLING | {
        "stream_options", "chat_template_kwargs", "enable_thinking", "tool_choice", "top_logprobs",
        "include_usage", "cache_salt", "merge_and_unload", "peft", "xtc_probability",
        "tokenizer_info", "beam_search", "response_format", "json_object", "json_schema",
        "reasoning_effort", "continue_final_message", "adaptive_target", "return_token_ids",
        "structural_tag", "add_request", "add_special_tokens", "top_n_sigma", "typ_p",
        "smoothing_factor", "sampling_params", "truncate_prompt_tokens", "on_output",
            "previous_response_id",
    }  # fmt: skip
    for _, row in ROWS:
        for word in re.findall(r"\b[a-z]+_[a-z_]+\b", f"{row.text} {row.fix}"):
            assert word in known, f"{row.name}: {word}"


@pytest.mark.parametrize("given", [99999, -4, "many"])  # the first is found by the start
def test_errors_name_settings_and_params_as_they_were_given(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^n_ctx .*\d"):
        LLM("quire-tiny", n_ctx=given)
    with pytest.raises(ConfigError, match=r"^n_ctx .*\d"):
        LLMEngine.from_engine_args(EngineArgs(model="quire-tiny", n_ctx=given))
    args = AsyncEngineArgs(model="quire-tiny", n_ctx=given)
    with pytest.raises(ConfigError, match=r"^n_ctx .*\d"):
        asyncio.run(AsyncLLM.from_engine_args(args).check_health())
    with (
        pytest.raises(ConfigError, match=r"; use quantize='int8'$"),
        names_as_given({"quantize": "int4"}, OPTION_SCOPES),
    ):
        raise ConfigError("batch_invariant: not with AMX; use quantization='int8'")
    with pytest.raises(InvalidRequestError, match=r"^max_new_tokens: must be") as caught:
        SamplingParams(max_new_tokens=-4)
    assert caught.value.param == "max_new_tokens"


def test_serve_takes_command_lines_of_other_engines(capsys: pytest.CaptureFixture[str]) -> None:
    parser = serve.make_parser()
    args = parser.parse(
        shlex.split(
            "-m x -c 4096 -ngl 99 -fa on --no-mmap --jinja -np 4 -ctk q8_0 -a name -t 2 -O3"
        )
    )
    plain = parser.parse(
        shlex.split(
            "--model x --max-model-len 4096 --max-num-seqs 4 --kv-cache-dtype int8 "
            "--served-model-name name --threads 2"
        )
    )
    assert vars(args) == vars(plain)
    notes = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in notes] == [
        ["note:", flag] for flag in ("-ngl", "-fa", "--no-mmap", "-O3", "-c")
    ]
    assert notes[-1].endswith("-c 4096 is for each request; llama.cpp divides it by -np 4")
    args = parser.parse(
        shlex.split(
            "x --tensor-parallel-size=1 --max_model_len 8K --dtype half --quantization None "
            "--trust-remote-code --enable-auto-tool-choice --tool-call-parser llama3_json "
            "--reasoning-parser deepseek_r1 --no-enable-log-requests"
        )
    )
    plain = parser.parse(
        shlex.split(
            "x --max-model-len 8K --dtype float16 --tool-call-parser llama3 "
            "--quantization none --reasoning-parser think"
        )
    )
    assert vars(args) == vars(plain)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--tensor-parallel-size 4", "^--tensor-parallel-size 4 is not supported"),
        ("-ctk q4_0", "^-ctk 'q4_0' is not supported"),
        ("--lora a.gguf", "^--lora 'a.gguf' is not supported: .*; merge the adapter"),
        (
            "--presence-penalty 0.7",
            "^--presence-penalty is set by each request; send 'presence_penalty' there",
        ),
        ("-O3x 1", "^unknown option -O3x"),
        ("--spec-type ngram-simple", "^--spec-type 'ngram-simple' is not supported"),
        ("--ctx-sizes 1", "^unknown option --ctx-sizes; see quire serve --help"),
        ("--ctx-size", "^--ctx-size: its value is missing; write it after"),
        ("--numa-bind-nodes --port 9000", "^--numa-bind-nodes: its value is missing"),
        ("x --cudagraph-capture-sizes --port=9", "^--cudagraph-capture-sizes: its value is"),
        ("-c 4096 -np auto", "must be an integer"),
        ("--load-in-4bit=x", "^--load-in-4bit 'x' is not supported; set it to true or false"),
        ("x --swap-space -tp 1", "^--swap-space: its value is missing"),
    ],
)
def test_serve_refuses_by_name(line: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=text):
        serve.make_parser().parse(line.split())
    assert not capsys.readouterr().err  # notes are on what runs


@pytest.mark.parametrize("line", ["-m --prompt a", "--prompt a -m"])
def test_a_model_that_is_missing_is_no_other_option(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^--model: its value is missing; write it"):
        generate.make_parser().parse(line.split())


@pytest.mark.parametrize("line", ["-m x --prompt a", "--prompt a --model=x", "x -p a"])
def test_a_command_takes_its_model_by_an_option_too(line: str) -> None:
    args = generate.make_parser().parse([*line.split(), "-n", "4", "--temp", "0"])
    assert (args.model, args.prompt, args.max_tokens, args.temperature) == ("x", ["a"], 4, 0)


@pytest.mark.parametrize("text", ["1.", "007", " 1", "1_000", "1e3", "true", "{}", "--", "-1"])
def test_a_text_under_another_name_stays_as_it_is_written(text: str, tmp_path: Path) -> None:
    args = generate.make_parser().parse([f"--reverse-prompt={text}", "-a", text, "-p", "a"])
    assert (args.stop, args.served_model_name) == ([text], text)
    file = tmp_path / "options.yaml"
    file.write_text(f"alias: {text if text.isalnum() else repr(text)}\nno-cache-prompt: true\n")
    args = serve.make_parser().parse(["--config", str(file)])
    serve.read_config(args)
    assert (args.served_model_name, args.enable_prefix_caching) == (text, False)


def test_a_number_of_yaml_is_a_text_under_another_name_too(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("alias: 1.10\n")
    args = serve.make_parser().parse(["--config", str(file)])
    serve.read_config(args)
    assert args.served_model_name == "1.10"


def test_values_of_numpy_are_those_of_python() -> None:
    config = EngineConfig.from_options(disable_radix_cache=np.bool_(True), swap_space=np.int64(0))
    assert config == EngineConfig.from_options(enable_prefix_caching=False)
    given = {"temperature": np.float32(0.5), "top_k": np.int64(3)}
    config = EngineConfig.from_options(override_generation_config=given)
    assert config.model.override_generation_config == '{"temperature": 0.5, "top_k": 3}'
    config = EngineConfig.from_options(served_model_name=np.array(["a", "b"]))
    assert (config.model.public_name, config.model.aliases) == ("a", ["b"])
    with pytest.raises(ConfigError, match=r"^tensor_split array\(\[1, 2\]\) is not supported"):
        EngineConfig.from_options(tensor_split=np.array([1, 2]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("override_generation_config", {"temperature": object()}),
        ("dtype", np.array([1, 2])),
        ("served_model_name", np.int64(3)),
        ("threads", np.array([1, 2])),
        ("seed", {1, 2}),
    ],
)
def test_values_of_any_type_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must "):
        EngineConfig.from_options(**{name: value})


def test_stages_that_are_left_out_are_off() -> None:
    line = "-m x --prompt a --samplers top_k;temperature --top-k 5 --top-p 0.5 --temp 0.7"
    args = generate.make_parser().parse(line.split())
    assert (args.top_k, args.top_p, args.min_p, args.temperature) == (5, 1.0, 0.0, 0.7)
    with pytest.raises(ConfigError, match=r"^--samplers is set by each request; send 'samplers'"):
        serve.make_parser().parse(["x", "--samplers", "top_k"])


def test_penalties_without_reach_are_off_whatever_else_is_set() -> None:
    line = "-m x --prompt a --repeat-last-n 0 --repeat-penalty 1.3 --presence-penalty=1"
    args = generate.make_parser().parse(line.split())
    found = (args.repetition_penalty, args.presence_penalty, args.frequency_penalty)
    assert found == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("word", ["run", "pull", "ls", "bench", "collect-env"])
def test_commands_of_other_engines(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 2
    assert (
        f"error: unknown command {word!r}; {foreign_commands.COMMANDS[word]}"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("flag", ["--served-model-name", "--served_model_name"])
def test_a_model_may_have_several_names(flag: str) -> None:
    for line in (
        f"x {flag} a b --port 1",
        f"x {flag} a --port 1 {flag} b",
        f"{flag}=a,b x",
        f"--enforce-eager x {flag} a b",
        f"--port 1 {flag} a b --host h x",
        f"{flag} a b --model x",
        f"-m x {flag} a b",
    ):
        args = serve.make_parser().parse(line.split())
        (plan,) = serve.model_plans(args, serve.server_settings(args))
        assert (plan.name, plan.config.model.aliases) == ("a", ["b"])
        assert plan.config.model.model == "x"


@pytest.mark.parametrize("line", ["a b", "a ./folder", "a b x --port 1", "a,b x --threads 2"])
def test_names_without_a_model_are_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=r"is a name or the model; write the model first: MODEL"):
        serve.make_parser().parse(["--served-model-name", *line.split()])


def test_one_model_is_the_model() -> None:
    for line in ("--model quire-tiny --served-model-name a", "quire-tiny --served-model-name a"):
        args = serve.make_parser().parse(line.split())
        plans = serve.model_plans(args, serve.server_settings(args))
        assert [(p.name, p.config.model.model) for p in plans] == [("a", "quire-tiny")]


@pytest.mark.parametrize("value", ["torchao", "q4_0", "Q4_K_M", "q8_0", "F16"])
def test_a_value_that_is_known_and_not_there_says_what_to_use(value: str) -> None:
    with pytest.raises(ConfigError, match=f"^quantization '{value}' is not supported: .*use "):
        EngineConfig.from_options(quantization=value)


@pytest.mark.parametrize(
    ("option", "value", "fix"),
    [
        ("quantization", "Q4_K_M", "leave it out there; use 'int4'"),
        ("quantization", "q8_0", "leave it out there; use 'int8'"),
        ("quantization", "Q5_K_M", "leave it out there; use 'int8'"),
        ("quantization", "bf16", "leave it out there; use dtype 'bfloat16'"),
        ("kv_cache_dtype", "q4_0", "its types have 16 or 8 bits; use 'fp8' or 'int8'"),
        ("kv_cache_dtype", "FP8_E5M2", "its types have 16 or 8 bits; use 'fp8' or 'int8'"),
        ("chat_template", "chatml", "; leave it out to use the model's own, or use a file"),
    ],
)
def test_names_of_llama_cpp_say_what_to_use(
    option: str, value: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"^{option} '{value}' is not supported: .*{fix}"):
        EngineConfig.from_options(**{option: value})
    assert main(["serve", f"--{option.replace('_', '-')}", value]) == 2
    assert fix.partition(";")[2] in capsys.readouterr().err


def test_a_file_may_have_a_name_of_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chatml").write_text("{{ messages }}")
    assert own_value("chat_template", "chatml") == "chatml"


@pytest.mark.parametrize(
    ("value", "own"), [("AWQ", "awq"), ("GPTQ_Marlin", "gptq"), ("FP8", "fp8")]
)
def test_a_quantization_in_any_case(value: str, own: str) -> None:
    assert own_value("quantization", value) == own


def test_formats_that_are_read_are_values_of_quantization() -> None:
    assert {own_value("quantization", name) for name in READERS} == {*STORED_METHODS, "fp8"}


def test_a_seed_of_minus_one_is_another_one_each_time() -> None:
    """As in llama.cpp; a request's is none, as in vLLM."""
    first, second = (EngineConfig.from_options(seed=-1).model.seed for _ in range(2))
    assert first != second
    assert min(first, second) >= 0
    assert own_value("seed", 1) == 1
    assert SamplingParams(seed=-1) == SamplingParams()


@pytest.mark.parametrize("value", ["CUDA", "Cuda:0", "GPU"])
def test_devices_may_be_in_capitals(value: str) -> None:
    assert own_value("device", value) == "cuda"
