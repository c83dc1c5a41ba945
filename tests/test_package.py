"""What `import quire` offers, and the types of `LLM(...)`."""

from __future__ import annotations

import pydoc
import sys
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch
from child_process import run_to_end

import quire
from quire.compat.names_table import rows_of
from quire.config import CacheConfig, DeviceConfig, ModelSettings, SchedulerConfig
from quire.core.sampling_options import SamplingOptions
from quire.engine.frontend.prompt_inputs import read_prompts
from quire.llm_options import LLMArguments, LLMOptions
from quire.options import options_of

# those that take more from Python: paths, maps
WIDER = {"tokenizer", "chat_template", "generation_config", "prepared_weights",
         "override_generation_config"}  # fmt: skip
# arguments of SamplingParams that are not of their fields' types
TAKEN_PARAMS = [
    "stop='x', bad_words='a'",
    "stop=('x', 'y'), bad_words={'a'}, stop_token_ids={1}, kept_token_ids=range(3)",
    "stop=None, bad_words=None, stop_token_ids=None, kept_token_ids=None",
    "stop=iter(['x']), allowed_token_ids=np.arange(3), logprob_token_ids=(np.int64(1), 2)",
    "temperature=0, top_p=np.float32(0.5), seed=np.int64(3), max_tokens=np.int32(3)",
    "structured_outputs={'regex': 'a'}, output_kind=2, logit_bias={1: 2}",
]
TAKEN_PROMPTS = [
    *("'a'", "[1, 2]", "(1, 2)", "np.arange(3)", "{'prompt': 'a'}", "torch.arange(3)"),
    *("['a', 'b']", "('a', [1])", "iter(['a'])", "[[1], (1, 2), np.arange(3), torch.arange(3)]"),
    "['a', {'prompt': 'a'}, {'prompt_token_ids': [1]}, [1, 2]]",
]


def test_all_names_are_there() -> None:
    assert dir(quire) == sorted(quire.__all__)
    for name in quire.__all__:
        assert getattr(quire, name) is not None
    assert issubclass(quire.errors.ConfigError, quire.errors.QuireError)
    with pytest.raises(AttributeError, match="no attribute 'LMM'") as error:
        quire.LMM  # noqa: B018
    assert (error.value.name, error.value.obj) == ("LMM", quire), "by which Python finds LLM"


@pytest.mark.parametrize("folder", ["quire", "bin/quire"])
def test_a_program_may_have_the_commands_name(tmp_path: Path, folder: str) -> None:
    """Its Ctrl-C stays an exception, and it may import in a thread, where no signal can be set."""
    program = tmp_path / folder
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        "import signal, threading\n"
        "work = threading.Thread(target=lambda: __import__('quire'))\n"
        "work.start(); work.join()\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "import quire\n"
    )
    ended = run_to_end([sys.executable, program], check=True)
    assert "Error" not in ended.stderr


def test_help_is_there_for_all_of_it() -> None:
    assert pydoc.render_doc(quire)
    for name in set(quire.__all__) - {"__version__"}:
        assert pydoc.render_doc(getattr(quire, name))


def test_options_are_typed_as_the_settings() -> None:
    settings, lists = {}, set()
    for cls in (ModelSettings, CacheConfig, SchedulerConfig, DeviceConfig):
        settings |= get_type_hints(cls)
        lists |= {option.name for option in options_of(cls) if option.is_list}
    typed = get_type_hints(LLMOptions)
    assert typed.keys() == settings.keys() - {"model"}
    for name, hint in typed.items():
        if name not in WIDER:
            assert hint == settings[name] | (list[str] if name in lists else None) | None, name


def test_names_of_vllm_are_typed() -> None:
    of_vllm = {row.name for row in rows_of("engine") if "vLLM" in row.engines}
    assert get_type_hints(LLMArguments).keys() - get_type_hints(LLMOptions) == of_vllm


def test_a_wrong_name_fails_a_type_checker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from quire import LLM, SamplingParams\n"
        "LLM('m', max_model_len=8, dtype='bfloat16')\n"
        "LLM('m', max_model_length=8)\n"
        "LLM('m', dtype='int3')\n"
        "SamplingParams(temprature=1)\n"
        "SamplingParams(stop=5)\n"
        "SamplingParams(max_tokens='5')\n"
        "LLM('m').generate(5)\n"
        "LLM('m').generate(['a', 5.5])\n"
        "LLM('m', tensor_parallel_size=1, swap_space=4, device_memory_utilization=0.5)\n"
        "import numpy as np, torch\n"
        + "".join(f"SamplingParams({each})\n" for each in TAKEN_PARAMS)
        + "".join(f"LLM('m').generate({each})\n" for each in TAKEN_PROMPTS)
        + "kinds = ['a', [1, 2]]\nLLM('m').generate(kinds)\n"
    )
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-incremental"]
    done = run_to_end([*command, str(script)])
    lines = [line.partition(": error: ") for line in done.stdout.splitlines() if "error:" in line]
    assert [location.rpartition(":")[2] for location, _, _ in lines] == [*"3456789"], done.stdout
    assert 'keyword argument "max_model_length"' in lines[0][2]


def test_prompts_take_the_types_that_type_checkers_know() -> None:
    for prompts in TAKEN_PROMPTS:
        assert read_prompts(eval(prompts, {"np": np, "torch": torch}))


def test_params_take_the_types_that_type_checkers_know() -> None:
    assert tuple(SamplingOptions.__annotations__) == quire.SamplingParams.__struct_fields__
    for params in TAKEN_PARAMS:
        eval(f"quire.SamplingParams({params})", {"quire": quire, "np": np})
