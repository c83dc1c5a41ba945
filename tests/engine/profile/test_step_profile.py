"""A step taken apart: bytes and FLOPs by hand, every operation once, and what is printed of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from child_process import run_to_end
from prepared_files import wait_for_prepared_files

from quire.cli import main
from quire.config import EngineConfig
from quire.engine.profile import compiled_profile, torch_profile
from quire.engine.profile.compiled_profile import TimedCalls
from quire.engine.profile.profile_result import Profile, StepShape
from quire.engine.profile.roofline import Roofline, num_keys, num_pairs
from quire.engine.profile.step_profile import profile_step
from quire.engine.profile.torch_roofline import time_calls
from quire.engine.startup import step_tuning
from quire.engine.startup.compiled_start import make_decoder, with_cache
from quire.engine.startup.torch_start import compiled_weights_of, resolve_for_torch
from quire.hub import resolve_model
from quire.kernels.ragged_batch import RaggedBatch
from quire.models.config.model_config import ModelConfig
from quire.models.loading.loader import load_model

MODEL = "quire-tiny-draft"
MODEL_CONFIG = ModelConfig.from_folder(resolve_model(MODEL))


def _rates(*_: object, in_fp8: bool) -> Roofline:
    return Roofline(1e9, 1e12, 2e12 if in_fp8 else None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed rates and one run of each call, so that nothing is measured."""
    monkeypatch.setattr(torch_profile, "measure_roofline", _rates)
    monkeypatch.setattr(compiled_profile, "measure_host_roofline", partial(_rates, in_fp8=False))
    monkeypatch.setattr("quire.engine.profile.roofline.LEAST_SECONDS", 0.0)


def profile(*step: int, quantization: str = "none") -> Profile:
    config = EngineConfig.from_options(
        model=MODEL, device="cpu", dtype="float32", quantization=quantization
    )
    return profile_step(config, StepShape(*step))


@pytest.mark.parametrize("step", [(3, 1, 40), (2, 300, 300)])
def test_linears_read_all_weights_once_a_token(step: tuple[int, int, int]) -> None:
    found = profile(*step)
    head = MODEL_CONFIG.vocab_size * MODEL_CONFIG.hidden_size
    layers = sum(
        linear.num_weights for layer in MODEL_CONFIG.spec.layers for linear in layer.linears
    )
    num_requests, num_new, _ = step
    linears = [op for op in found.operations if op.name.startswith(("linear", "rms_norm_linear"))]
    assert sum(op.flops for op in linears) == 2 * num_requests * (num_new * layers + head)
    assert sum(op.num_bytes for op in linears) > 4 * (layers + head)


def test_attention_reads_each_key_once_and_sees_pairs() -> None:
    (decode,) = (op for op in profile(3, 1, 40).operations if op.name == "attention")
    slot = 2 * MODEL_CONFIG.num_kv_heads * MODEL_CONFIG.head_dim * 4
    rows = 2 * 3 * MODEL_CONFIG.num_heads * MODEL_CONFIG.head_dim * 4  # queries and results
    assert decode.num_bytes == MODEL_CONFIG.num_layers * (3 * 40 * slot + rows)
    assert (
        decode.flops
        == MODEL_CONFIG.num_layers * 3 * 40 * 4 * MODEL_CONFIG.num_heads * MODEL_CONFIG.head_dim
    )
    (prefill,) = (op for op in profile(2, 20, 20).operations if op.name == "attention")
    assert (
        prefill.flops
        == MODEL_CONFIG.num_layers * 2 * 210 * 4 * MODEL_CONFIG.num_heads * MODEL_CONFIG.head_dim
    )


def test_windows_bound_what_is_seen() -> None:
    assert (num_keys(1, 100, None), num_keys(1, 100, 16), num_keys(5, 100, 16)) == (100, 16, 20)
    assert (num_pairs(3, 3, None), num_pairs(3, 10, None), num_pairs(4, 4, 2)) == (6, 27, 7)


def test_every_operation_of_the_step_is_there() -> None:
    found = profile(1, 1, 16)
    counts = Counter({op.name: 0 for op in found.operations})
    for op in found.operations:
        counts[op.name] += op.count
    assert counts["attention"] == counts["rope_write_kv"] == MODEL_CONFIG.num_layers
    assert sum(n for name, n in counts.items() if "linear" in name) == (
        4 * MODEL_CONFIG.num_layers + 1
    )
    assert all(op.seconds > 0 and op.floor > 0 for op in found.operations)
    assert found.operations == sorted(found.operations, key=lambda op: -op.seconds)


def test_the_runtime_that_serves_is_profiled() -> None:
    compiled, modules = profile(2, 1, 40), profile(2, 1, 40, quantization="fp8")
    assert compiled.runtime == "compiled decoder"
    assert modules.runtime == "PyTorch modules"
    for name in ("attention", "rope_write_kv"):
        work = [
            [(op.count, op.flops) for op in each.operations if op.name == name]
            for each in (compiled, modules)
        ]
        assert work[0] == work[1]


def test_a_timed_step_gives_the_same_states() -> None:
    config = EngineConfig.from_options(
        model=MODEL, device="cpu", dtype="bfloat16", quantization="int8", prepared_weights="none"
    )
    _, resolved = resolve_for_torch(config)
    arguments = config.model, resolved.model_config, resolved.folder, torch.device("cpu")
    stored = compiled_weights_of(load_model(*arguments, torch.bfloat16))
    model = with_cache(resolved, make_decoder(resolved, stored), MODEL_CONFIG.num_layers, 2)
    lens, table = np.array([1, 9]), np.array([[0], [1]], np.int32)
    batch = RaggedBatch.of(lens, lens, table, resolved.config.cache.block_size)

    def states() -> bytes:
        hidden = model.forward(np.arange(10), batch)
        return hidden.states.tobytes() + hidden.logits(np.array([0, 9])).tobytes()

    plain = states()
    calls = TimedCalls(stored, StepShape(1, 10, 10), slot_bytes=0)
    with calls.replacing_the_library():
        assert states() == plain
    assert calls.work


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # who imports it fails
from quire.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_neither_a_profile_nor_a_dry_run_needs_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.models.prepared.prepared_weights.WORTH_BYTES", 0)
    words = [MODEL, "--device", "cpu", "--prepared-weights", str(tmp_path)]
    assert main(["profile", *words, "--context", "9"]) == 0
    wait_for_prepared_files()
    for command in (["profile", *words, "--context", "9"], ["serve", *words, "--dry-run"]):
        run = run_to_end([sys.executable, "-c", WITHOUT_TORCH, *command])
        assert run.returncode == 0, run.stderr


def test_what_binds_is_what_takes_longer() -> None:
    roofline = Roofline(bytes_per_second=100.0, flops_per_second=1000.0)
    assert roofline.is_memory_bound(200, 1000)
    assert not roofline.is_memory_bound(50, 1000)
    assert (roofline.floor(200, 1000), roofline.floor(50, 1000)) == (2.0, 1.0)
    assert roofline.floor(50, 1000, in_fp8=True) == 1.0  # where they are dequantized
    fp8 = Roofline(100.0, 1000.0, fp8_flops_per_second=4000.0)
    assert (fp8.floor(10, 1000, in_fp8=True), fp8.floor(10, 1000)) == (0.25, 1.0)
    assert fp8.is_memory_bound(50, 1000, in_fp8=True)


def test_fp8_linears_have_their_own_roofline() -> None:
    for op in profile(2, 300, 300, quantization="fp8").operations:
        rate = 2e12 if op.name.startswith(("linear", "rms_norm_linear")) else 1e12
        assert op.floor == pytest.approx(max(op.num_bytes / 1e9, op.flops / rate))


def test_calls_are_made_before_and_while_they_are_timed() -> None:
    made: list[int] = []
    calls = [lambda: made.append(1), lambda: made.append(2)]
    assert time_calls(calls, torch.device("cpu")) > 0
    assert made == [1, 2] * 4  # once to warm up, then three runs


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(step_tuning, "TINY_MODEL_BYTES", 0)  # so that steps are measured
    words = ["profile", MODEL, "--device", "cpu", "--batch-size", "2", "--context", "33"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "decoding, 2 x 33 tokens" in text
    assert "all of these" in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == {"num_requests": 2, "num_new": 1, "context": 33}
    assert found["operations"]
    assert set(found["table"]["decodes"]) <= {"1", "8"}


@pytest.mark.parametrize("rate", [1.0, 1e30])
def test_what_is_above_the_roofline_is_explained(
    rate: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiled_profile, "measure_host_roofline", lambda _: Roofline(rate, rate))
    assert main(["profile", MODEL, "--device", "cpu", "--context", "9"]) == 0
    assert ("above 100%: " in capsys.readouterr().out) == (rate == 1.0)


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "step.png"
    assert main(["profile", MODEL, "--device", "cpu", "--prefill", "9", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "prefill, 1 x 9 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--prefill", "8", "--context", "9"], "set one of them"),
        (["--batch-size", "0"], "--batch-size must be at least 1, not 0"),
        (["--batch-size", "1g"], "does not fit in memory; lower --batch-size, --context or"),
        (["--plot", "nowhere/x.png"], "must be a .png file in an existing folder"),
        (["--plot", "x.pdf"], "must be a .png file in an existing folder"),
        (["--context", "1000000"], "--context is 1000000, but the model knows positions up to"),
    ],
)
def test_mistakes(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", MODEL, "--device", "cpu", *words]) == 2
    assert error in capsys.readouterr().err
