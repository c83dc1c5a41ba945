"""Starts over prepared weights: no PyTorch, the same answers; what is left to PyTorch's way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from child_process import run_to_end
from prepared_files import wait_for_prepared_files

from quire import LLM, SamplingParams, StructuredOutputs
from quire.config import EngineConfig
from quire.core.layer_spec import UnsupportedModelError
from quire.engine.startup import device_policy
from quire.engine.startup.compiled_start import load_prepared
from quire.engine.startup.start_engine import start_engine
from quire.engine.startup.startup_phases import Phases
from quire.errors import CheckpointError, ConfigError
from quire.hub import resolve_model
from quire.kernels.cpu import native
from quire.kernels.cpu.native import num_threads, set_num_threads
from quire.models.runtimes.compiled_decoder import CompiledDecoder

pytestmark = pytest.mark.skipif(native.library() is None, reason="the kernels were not built")

QUANTIZATIONS: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "bfloat16", "quantization": "int8"},
    {"dtype": "bfloat16", "quantization": "int4", "kv_cache_dtype": "int8"},
]
PARAMS = [
    SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=2),
    SamplingParams(temperature=1.3, top_p=0.9, min_p=0.01, seed=4),
    SamplingParams(temperature=0.8, top_k=20, seed=5, logprobs=0),
    SamplingParams(
        temperature=0.0, presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.2
    ),
    SamplingParams(temperature=0.0, logit_bias={40: 4.0, 41: -9.0}, min_tokens=9),
    SamplingParams(temperature=0.0, bad_words=["the", "a"], min_tokens=16),
    SamplingParams(
        seed=6,
        max_tokens=40,
        structured_outputs=StructuredOutputs(
            json={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        ),
    ),
]
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None  # who imports it fails
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/../.."]
from test_compiled_start import answers
print(json.dumps(answers(json.loads(sys.argv[2]))))
"""


def answers(options: dict[str, Any]) -> list[Any]:
    """Of a new engine to each params, and a vector; as JSON has them.

    One by one: with four bits numbers depend on how many rows a product has, and when a form is
    ready on the machine.
    """
    llm = LLM(num_blocks=64, threads=1, device="cpu", **options)
    found: list[Any] = []
    for params in PARAMS:
        (answer,) = llm.generate("Once upon a time", params, use_tqdm=False)
        (output,) = answer.outputs
        found.append([output.text, output.token_ids, output.finish_reason])
        scores = [*(output.logprobs or ()), *(answer.prompt_logprobs or [None])[1:]]
        found += [[(key, each.logprob, each.rank) for key, each in s.items()] for s in scores]
    (vector,) = llm.embed("Once upon a time", use_tqdm=False)
    found.append(vector.embedding.tolist())
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def run(program: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, *args]
    return run_to_end(command, env=os.environ | environment)


def prepare(options: dict[str, Any]) -> list[Any]:
    """A first start, which makes the file; what it answers."""
    found = answers(options)
    wait_for_prepared_files()
    return found


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = num_threads()
    yield
    set_num_threads(before)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings of a model whose weights are prepared."""
    options = {"dtype": "float32", "prepared_weights": str(tmp_path_factory.mktemp("prepared"))}
    prepare(options)
    return options


@pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=["float32", "int8", "int4"])
def test_a_second_start_needs_no_torch_and_answers_the_same(
    quantization: dict[str, Any], tmp_path: Path
) -> None:
    options = {**quantization, "prepared_weights": str(tmp_path)}
    first = prepare(options)
    assert list(tmp_path.glob("*.safetensors"))
    second = run(WITHOUT_TORCH, str(Path(__file__).parent), json.dumps(options))
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout) == first


COMMAND = """
import json, sys
from quire.cli import main
status = main(sys.argv[1:])
ours = [vars(module) for name, module in sys.modules.items() if name.partition(".")[0] == "quire"]
classes = {value for each in ours for value in each.values() if isinstance(value, type)}
records = [each for each in classes if "__dataclass_fields__" in vars(each)]
unneeded = ["rich", "numpy.ma", "quire.compat.names_table",
            "quire.models.checkpoint_formats.config_readers"]
used = [name for name in unneeded if name in sys.modules]
print(json.dumps([len(ours), len(records), used]), file=sys.stderr)
sys.exit(status)
"""
# of a warm start: a module takes 0.2 ms, and a dataclass 0.5 to 1 (a msgspec.Struct 0.01)
MOST_MODULES, MOST_DATACLASSES = 211, 21


def test_a_command_needs_none(prepared: dict[str, str], tmp_path: Path) -> None:
    """Nor does anything that it starts; and it imports little else that it does not need."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch is not to be imported')")
    words = ["generate", "--prompt", "a", "--max-tokens", "3", "--device", "cpu"]
    words += ["--dtype", "float32", "--prepared-weights", prepared["prepared_weights"]]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(COMMAND, *words, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    num_modules, num_dataclasses, unneeded = json.loads(done.stderr)
    assert (num_modules <= MOST_MODULES, num_dataclasses <= MOST_DATACLASSES) == (True, True)
    assert unneeded == []


def loaded(options: dict[str, Any]) -> bool:
    """Whether the model is there without PyTorch."""
    try:
        load_prepared(EngineConfig.from_options(**options), Phases())
    except UnsupportedModelError:
        return False
    return True


@pytest.mark.parametrize(
    "other",
    [
        {"quantization": "fp8"},
        {"dtype": "float16"},
        {"prepared_weights": "none"},
        {"load_format": "dummy"},
        {"model": "quire-tiny-draft"},
        {"device": "cuda"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_settings_are_left_to_torch(prepared: dict[str, str], other: dict[str, Any]) -> None:
    assert loaded({"device": "cpu", **prepared})
    assert not loaded({"device": "cpu", **prepared, **other})


@pytest.mark.parametrize("file", ["/dev/nvidiactl", "/dev/dxg"])
def test_a_gpu_that_the_driver_has_is_left_to_torch(
    prepared: dict[str, str], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == file or exists(self))
    monkeypatch.setattr(device_policy, "is_cpu_build", lambda _: False)
    for capability in (None, (9, 0)):
        monkeypatch.setattr(device_policy, "driver_capability", lambda found=capability: found)
        assert loaded({"device": "auto", **prepared}) == (capability is None)
    assert loaded({"device": "cpu", **prepared})


def test_where_compiled_kernels_are_not_to_be_used_torch_is_needed(
    prepared: dict[str, str],
) -> None:
    arguments = str(Path(__file__).parent), json.dumps(prepared)
    done = run(WITHOUT_TORCH, *arguments, QUIRE_CPU_KERNELS="torch")
    assert done.returncode == 1
    assert "import of torch halted" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"threads": 100_000}, "threads must be at most"),
        ({"max_model_len": 5000}, "positions up to 4096; lower it"),
        ({"num_blocks": 1, "max_model_len": 100}, "max_model_len is 100"),
    ],
)
def test_impossible_settings_are_reported_as_by_any_start(
    prepared: dict[str, str], options: dict[str, Any], problem: str
) -> None:
    config = EngineConfig.from_options(device="cpu", **prepared, **options)
    with pytest.raises(ConfigError, match=problem):
        start_engine(config)


def test_a_broken_model_is_reported_as_by_any_start(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve_model("quire-tiny"), folder)
    options = {"model": str(folder), "dtype": "float32", "prepared_weights": str(tmp_path / "kept")}
    prepare(options)
    assert loaded({"device": "cpu", **options})
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text[: len(text) // 2])
    with pytest.raises(CheckpointError, match=r"config\.json"):
        LLM(device="cpu", **options)


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    options = {"dtype": "float32", "prepared_weights": str(tmp_path)}
    first = prepare(options)
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    assert not loaded({"device": "cpu", **options})
    assert prepare(options) == first
    assert file.read_bytes() == whole
    assert loaded({"device": "cpu", **options})


def test_two_threads_may_start_at_once(prepared: dict[str, str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(answers, [prepared] * 2)
    assert first == second == answers(prepared)


BESIDE = """
import json, sys, types
from quire.config import EngineConfig
from quire.engine.startup.start_engine import start_engine
half = sys.modules["torch"] = types.ModuleType("torch")  # as while another thread imports it
start_engine(EngineConfig.from_options(device="cpu", num_blocks=9, **json.loads(sys.argv[1])))
assert sys.modules["torch"] is half and not hasattr(half, "set_num_threads")
"""


def test_a_program_may_import_torch_meanwhile(prepared: dict[str, str]) -> None:
    done = run(BESIDE, json.dumps(prepared))
    assert done.returncode == 0, done.stderr


NO_TORCH = """
import importlib.machinery
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = staticmethod(
    lambda name, *rest: None if name == "torch" else find(name, *rest)
)
from quire.engine.startup.torch_import import import_torch
import_torch()
"""


def test_a_missing_torch_is_reported() -> None:
    done = run(NO_TORCH)
    assert "ConfigError: this start needs PyTorch, which is not installed" in done.stderr


def test_compiled_code_serves_a_first_start_too(tmp_path: Path) -> None:
    config = EngineConfig.from_options(device="cpu", prepared_weights=str(tmp_path), num_blocks=9)
    core, info = start_engine(config)
    assert isinstance(core._executor._runner._model, CompiledDecoder)  # type: ignore[attr-defined]
    assert {"device", "weights", "kv_cache"} <= info.seconds.keys()
