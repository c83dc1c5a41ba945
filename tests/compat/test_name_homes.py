"""Names given where they are none say where they belong: sampling params, a server's settings."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from unittest import mock

import pytest
from child_process import run_to_end

import quire
from quire.cli import chat, generate, quantize, serve
from quire.compat.environment import VARIABLES, unread_variables
from quire.compat.foreign_commands import PROGRAMS
from quire.compat.import_names import MODULES, NAMES
from quire.compat.method_names import METHODS
from quire.compat.name_homes import CALL_OPTIONS, DEFAULTS, SAMPLING_PARAMS, SERVER_SETTINGS
from quire.compat.names_table import row_of
from quire.config import EngineConfig, iter_options
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.prompt_inputs import read_prompts
from quire.engine.frontend.prompt_options import EncodingOptions, read_encoding, refuse_misplaced
from quire.errors import ConfigError, InvalidRequestError
from quire.options import nearest_name, options_of
from quire.server.settings import ServerSettings


def test_the_lists_are_those_of_the_classes() -> None:
    assert set(SamplingParams.__struct_fields__) == SAMPLING_PARAMS
    assert {option.name for option in options_of(ServerSettings)} == SERVER_SETTINGS
    assert set(EncodingOptions.__annotations__) == CALL_OPTIONS
    assert set(DEFAULTS) <= SAMPLING_PARAMS
    own = SERVER_SETTINGS | {option.name for _, option in iter_options()} | {"hub_folder"}
    assert set(VARIABLES) <= own


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"temperature": 0}, r"^temperature is a sampling param; use SamplingParams\(temperature="),
        ({"max_new_tokens": 9}, r"^max_new_tokens is .*SamplingParams\(max_tokens=\.\.\.\)"),
        ({"host": "::"}, "^host is a setting of the server; use `quire serve`"),
        ({"verbose": True}, "^verbose is a setting of the server; .* leave it out"),
    ],
)
def test_a_misplaced_setting(option: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EngineConfig.from_options(**option)


def test_a_switch_of_another_engine_that_is_off_asks_for_nothing() -> None:
    assert EngineConfig.from_options(verbose=False, log_disable=False) == EngineConfig()


def test_a_model_may_be_given_by_another_name_alone() -> None:
    with quire.LLM(model_path="quire-tiny", max_model_len=64) as llm:  # type: ignore[call-arg]
        assert llm.info.model_name == "quire-tiny"
        text = r"^temperature is a sampling param; use SamplingParams\(temperature=\.\.\.\)"
        with pytest.raises(InvalidRequestError, match=text):
            llm.generate("x", temperature=0)  # type: ignore[call-arg]
        with pytest.raises(InvalidRequestError, match=text):
            llm.chat([{"role": "user", "content": "x"}], temperature=0)
        (output,) = llm.chat(
            [{"role": "user", "content": "x"}],
            quire.SamplingParams(max_tokens=1),
            chat_template="{{ stop }} {{ timeout }}",  # a template's variables have any names
            stop="halt",
            timeout=7,
        )
        assert output.prompt_token_ids == llm.tokenizer.encode("halt 7")
        with pytest.raises(AttributeError, match=r"^LLM has no llm_engine") as error:
            llm.llm_engine  # type: ignore[attr-defined]  # noqa: B018
        assert error.value.obj is None, "Python would add a name that is merely alike"


def test_misplaced_arguments_of_methods() -> None:
    with pytest.raises(InvalidRequestError, match=r"^top_k is a sampling param"):
        read_encoding({"top_k": 3})  # type: ignore[typeddict-unknown-key]
    refuse_misplaced(["tools", "add_generation_prompt"])  # a template's own
    with pytest.raises(InvalidRequestError, match=r"^prompt\[0\]: it is a message of a chat"):
        read_prompts([{"role": "user", "content": "x"}])


def test_names_of_two_meanings_are_not_suggested() -> None:
    assert nearest_name("--models-dir", ["--model-load", "--model"]) is None
    assert nearest_name("topK", ["stop", "top_k"]) == "top_k"
    assert nearest_name("maxModelLen", ["max_model_len"]) == "max_model_len"
    assert nearest_name("--max-num-seq", ["--max-num-seqs", "--model"]) == "--max-num-seqs"


@pytest.mark.parametrize("name", ["truncate_prompt_tokens", "add_special_tokens"])
def test_an_option_of_a_call_is_no_sampling_param(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name} is an option of the call: generate\(\.\.\., "):
        SamplingParams(**{name: 3})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("guided_json", r"use structured_outputs=StructuredOutputs\(json=\.\.\.\)$"),
        ("ebnf", r"use structured_outputs=StructuredOutputs\(grammar=\.\.\.\)$"),
        ("regex", r"use structured_outputs=StructuredOutputs\(regex=\.\.\.\)$"),
        ("num_ctx", r"is a setting of the engine; use LLM\(max_model_len=\.\.\.\)$"),
        ("stream", "is not a sampling param: answers come whole; use on_output of LLM"),
        ("colour", r"^SamplingParams has no parameter 'colour'; known: n, temp"),
    ],
)
def test_a_name_of_something_else_says_where_it_is_given(name: str, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        SamplingParams(**{name: 3})  # type: ignore[arg-type]


def test_params_of_transformers() -> None:
    found = SamplingParams(  # type: ignore[call-arg]
        max_new_tokens=9, min_new_tokens=2, num_return_sequences=3, num_beams=1,
        truncate_prompt_tokens=None,
    )  # fmt: skip
    assert found == SamplingParams(max_tokens=9, min_tokens=2, n=3)
    assert SamplingParams(truncate_prompt_tokens=None) == SamplingParams()  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match=r"^eos_token_id 1 is not .*use stop_token_ids"):
        SamplingParams(eos_token_id=1)  # type: ignore[call-arg]


def test_params_have_names() -> None:
    text = r"^SamplingParams takes its parameters by name: SamplingParams\(n=\.\.\.\)$"
    with pytest.raises(TypeError, match=text):
        SamplingParams(0.5)  # type: ignore[arg-type, call-arg]


@pytest.mark.parametrize("module", MODULES)
def test_an_unknown_name_of_a_module_says_what_to_use(module: str) -> None:
    text = f"^quire has no no_such_name; {re.escape(MODULES[module])}$"
    for path in (module, f"{module}.inner"):
        with pytest.raises(ImportError, match=text):
            exec(f"from quire.{path} import no_such_name")


@pytest.mark.parametrize("name", NAMES)
def test_an_import_says_what_to_use(name: str) -> None:
    text = f"^quire has no {name}; "
    with pytest.raises(ImportError, match=text):
        __import__("quire", fromlist=[name])
    with pytest.raises(AttributeError, match=text):
        getattr(quire, name)
    assert not hasattr(quire, name)
    assert getattr(quire, name, None) is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("quire.sampling_params", "SamplingParams"),
        ("quire.sampling_params", "StructuredOutputsParams"),
        ("quire.sampling_params", "GuidedDecodingParams"),
        ("quire.outputs", "RequestOutput"),
        ("quire.utils.argparse_utils", "FlexibleArgumentParser"),
        ("quire.utils.print_utils", "print_embeddings"),
        ("quire.distributed", "cleanup_dist_env_and_memory"),
        ("quire.engine.arg_utils", "EngineArgs"),
        ("quire.entrypoints.llm", "LLM"),
        ("quire.engine.llm_engine", "LLMEngine"),
        ("quire.v1.engine.async_llm", "AsyncLLM"),
    ],
)
def test_modules_of_vllm_have_the_names_of_quire(module: str, name: str) -> None:
    found = __import__(module, fromlist=[name])
    assert getattr(found, name) is getattr(quire, name)


@pytest.mark.parametrize(
    ("module", "name", "text"),
    [
        ("quire.lora.request", "LoRARequest", "merge the adapter"),
        ("quire.v1.metrics.reader", "Counter", "use llm.stats"),
        ("quire.config", "CompilationConfig", "settings are arguments of LLM, by their names"),
        ("quire.envs", "VLLM_USE_V1", "settings are arguments of LLM, by their names"),
        ("quire.utils", "random_uuid", r"quire has no random_uuid; use Python's own modules"),
        ("quire.logger", "init_logger", "use Python's logging"),
    ],
)
def test_other_names_of_such_modules_say_what_to_use(module: str, name: str, text: str) -> None:
    with pytest.raises(ImportError, match=text):
        __import__(module, fromlist=[name])


def test_names_of_such_modules_may_be_tried() -> None:
    module = importlib.import_module("quire.sampling_params")
    text = r"^quire has no Nope; dir\(quire\)"
    assert not hasattr(module, "Nope")
    assert getattr(module, "LoRARequest", None) is None
    with pytest.raises(AttributeError, match=text):
        module.Nope  # noqa: B018
    with pytest.raises(ImportError, match=text):
        __import__("quire.sampling_params", fromlist=["Nope"])
    with mock.patch("quire.sampling_params.SamplingParams.clone", create=True):
        assert hasattr(quire.SamplingParams, "clone")
    with pytest.raises(AttributeError), mock.patch("quire.sampling_params.Nope"):
        pass
    with pytest.raises(ImportError):
        importlib.import_module("quire.sampling_params.SamplingParams")


@pytest.mark.parametrize("module", PROGRAMS)
def test_programs_of_other_engines_end_with_the_command(module: str) -> None:
    argv = ["-m", f"quire.{module}", "--model", "X", "--max-model-len", "8 K"]
    done = run_to_end([sys.executable, *argv])
    command = " ".join(["quire", *PROGRAMS[module], "--model X --max-model-len '8 K'"])
    text = f"quire has no program {module}; use `{command}`\n"
    assert (done.returncode, done.stderr) == (1, text)
    with pytest.raises(ImportError, match=f"quire has no module {module}"):
        importlib.import_module(f"quire.{module}.__main__")


def test_other_modules_fail_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'quire\.engine\.nope'"):
        __import__("quire.engine.nope")


def test_variables_of_other_engines_are_named() -> None:
    found = list(unread_variables({"VLLM_API_KEY": "x", "OLLAMA_HOST": ""}, {"model"}))
    assert found == ["VLLM_API_KEY is not read; use QUIRE_API_KEY"]
    assert not list(unread_variables({"VLLM_API_KEY": "x", "QUIRE_API_KEY": "y"}, ()))
    assert not list(unread_variables({"OLLAMA_HOST": "::"}, {"host"}))
    others = {
        "OLLAMA_MAX_QUEUE": "",
        "OLLAMA_DEBUG": "1",
        "VLLM_USE_V1": "1",
        "VLLM_BATCH_INVARIANT": "1",
        "PATH": "/bin",
    }
    assert list(unread_variables(others | {"LLAMA_ARG_MODEL": "x"}, ())) == [
        "LLAMA_ARG_MODEL is not read; use --model",
        "VLLM_BATCH_INVARIANT is not read; use --batch-invariant",
        "OLLAMA_DEBUG, VLLM_USE_V1 are not read; use options (quire serve --help)",
    ]


def test_serve_names_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("OLLAMA_", "LLAMA_", "VLLM_", "QUIRE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    with pytest.raises(ConfigError):
        serve.run(["--json"])
    assert capsys.readouterr().err == "note: LLAMA_API_KEY is not read; use QUIRE_API_KEY\n"


@pytest.mark.parametrize("flag", ["--temperature", "--temp", "--stop"])
def test_advice_is_of_this_commands_options(flag: str) -> None:
    line = ["x", "--method", "rtn", "--out", "y", flag, "1"]
    with pytest.raises(ConfigError, match=r"is a sampling param, which this command does not take"):
        quantize.make_parser().parse(line)


def test_a_level_of_the_log_asks_for_nothing_where_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "x -p a --log-disable -v --verbose false --verbose=false -n 3 -lv 1"
    args = generate.make_parser().parse(line.split())
    assert (args.prompt, args.max_tokens) == (["a"], 3)
    assert capsys.readouterr().err.splitlines() == [
        f"note: {flag} has no effect: this command logs warnings alone"
        for flag in ("--log-disable", "-v", "-lv")
    ]


def test_arguments_of_from_pretrained() -> None:
    nothing = EngineConfig.from_options(subfolder="", force_download=False, verbose=False)
    assert nothing == EngineConfig()
    config = EngineConfig.from_options(
        torch_dtype="float16", load_in_4bit=False, load_in_8bit=True, device_map="cpu"
    )
    assert config.device.device == "cpu"
    assert (config.model.dtype, config.model.quantization) == ("float16", "int8")
    with pytest.raises(ConfigError, match=r"^repo_id 'a/b' is not supported: .*hf download REPO"):
        EngineConfig.from_options(repo_id="a/b", filename="*Q8_0.gguf")


# of SGLang 0.5 and TGI 3, beside those that vLLM has, too
SERVERS = """
    --model-path x --tokenizer-path y --context-length 2K --mem-fraction-static 0.8 --ep-size 1
    --schedule-conservativeness 0.3 --enable-torch-compile --skip-server-warmup --pp-size 1
    --disable-overlap-schedule --enable-p2p-check --decode-log-interval 40 --hostname ::
    --sharded false --num-shard 1 --quantize eetq --max-batch-size 8 --cuda-memory-fraction 0.5
    --json-output --max-stop-sequences 4 --disable-custom-kernels
"""


def test_options_of_sglang_and_tgi(capsys: pytest.CaptureFixture[str]) -> None:
    args = serve.make_parser().parse(SERVERS.split())
    assert (args.models, args.max_model_len, args.max_num_seqs) == (["x"], 2048, 8)
    assert (args.quantization, args.log_format, args.host) == ("w8a16", "json", "::")
    assert "--skip-server-warmup has no effect" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"use num_blocks, or max_model_len"):
        serve.make_parser().parse(["--max-total-tokens", "9"])


def test_llama_clis_options(capsys: pytest.CaptureFixture[str]) -> None:
    line = """x -p a -cnv -i --color on --simple-io -j '{"type": "object"}' -dev none"""
    args = generate.make_parser().parse(shlex.split(line))
    assert (args.json_schema, args.device) == ('{"type": "object"}', "cpu")
    notes = capsys.readouterr().err.splitlines()
    assert [note.split()[1] for note in notes] == ["-i", "--color", "--simple-io"]
    assert args.chat
    assert generate.make_parser().parse(["-p", "a", "-sp"]).skip_special_tokens is False
    with pytest.raises(
        ConfigError, match=r"^--special .* each request; send 'skip_special_tokens'"
    ):
        serve.make_parser().parse(["x", "--special"])
    assert not generate.make_parser().parse(["-p", "a", "-no-cnv", "--no-conversation"]).chat
    assert "chat" not in chat.make_parser().parse(["x", "-cnv", "-st"])
    assert "-cnv has no effect: a command has one mode" in capsys.readouterr().err
    with pytest.raises(
        ConfigError, match=r"one prompt on each line here; use `quire generate --prompt"
    ):
        generate.make_parser().parse(["-f", "x"])


# of llama-cpp-python 0.3.36: the arguments and the methods of its Llama
LLAMA_ARGUMENTS = """
    model_path n_gpu_layers split_mode main_gpu tensor_split vocab_only use_mmap use_mlock
    kv_overrides seed n_ctx n_batch n_ubatch n_threads n_threads_batch rope_scaling_type
    pooling_type attention_type rope_freq_base rope_freq_scale yarn_ext_factor yarn_attn_factor
    yarn_beta_fast yarn_beta_slow yarn_orig_ctx logits_all embedding offload_kqv flash_attn
    op_offload swa_full no_perf last_n_tokens_size lora_base lora_scale lora_path numa chat_format
    chat_handler draft_model tokenizer type_k type_v spm_infill verbose
"""
LLAMA_METHODS = """
    tokenize detokenize set_cache set_seed reset eval sample generate create_embedding embed
    create_completion create_chat_completion create_chat_completion_openai_v1 save_state load_state
    n_ctx n_embd n_vocab tokenizer token_eos token_bos token_nl close logits_to_logprobs
    longest_token_prefix
"""


@pytest.mark.parametrize("name", LLAMA_ARGUMENTS.split())
def test_an_argument_of_llama_cpp_python_is_known(name: str) -> None:
    known = {option.name for _, option in iter_options()} | {"model"}
    assert name in known or row_of(name, ("engine", "server")) is not None


@pytest.mark.parametrize("name", LLAMA_METHODS.split())
def test_a_method_of_llama_cpp_python_is_known(name: str) -> None:
    assert name in METHODS or hasattr(quire.LLM, name) or name == "tokenizer"
