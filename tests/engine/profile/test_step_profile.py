"""A step taken apart: bytes and FLOPs by hand, every operation once, and what is printed of it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from quire.cli import main
from quire.config import EngineConfig
from quire.engine.profile import step_profile
from quire.engine.profile.roofline import Roofline, time_calls
from quire.engine.profile.step_profile import Profile, StepShape, profile_step
from quire.engine.profile.step_recorder import _num_keys, _num_pairs
from quire.hub import resolve_model
from quire.models.config.model_config import ModelConfig

MODEL = "quire-tiny-draft"
MODEL_CONFIG = ModelConfig.from_folder(resolve_model(MODEL))


def _rates(*_: object, in_fp8: bool) -> Roofline:
    return Roofline(1e9, 1e12, 2e12 if in_fp8 else None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is measured here: rates that are known, and each call once."""
    monkeypatch.setattr(step_profile, "measure_roofline", _rates)
    monkeypatch.setattr("quire.engine.profile.roofline._LEAST_SECONDS", 0.0)


def profile(*step: int, quantization: str = "none") -> Profile:
    config = EngineConfig.from_options(
        model=MODEL, device="cpu", dtype="float32", quantization=quantization
    )
    return profile_step(config, StepShape(*step))


@pytest.mark.parametrize("step", [(3, 1, 40), (2, 300, 300)])
def test_products_are_all_weights_once_a_token(step: tuple[int, int, int]) -> None:
    found = profile(*step)
    head = MODEL_CONFIG.vocab_size * MODEL_CONFIG.hidden_size
    layers = sum(
        linear.num_weights for layer in MODEL_CONFIG.spec.layers for linear in layer.linears
    )
    num_requests, num_new, _ = step
    products = [op for op in found.operations if op.name.startswith(("linear", "rms_norm_linear"))]
    assert sum(op.flops for op in products) == 2 * num_requests * (num_new * layers + head)
    assert sum(op.num_bytes for op in products) > 4 * (layers + head)


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
    assert (_num_keys(1, 100, None), _num_keys(1, 100, 16), _num_keys(5, 100, 16)) == (100, 16, 20)
    assert (_num_pairs(3, 3, None), _num_pairs(3, 10, None), _num_pairs(4, 4, 2)) == (6, 27, 7)


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


def test_what_binds_is_what_takes_longer() -> None:
    roofline = Roofline(bytes_per_second=100.0, flops_per_second=1000.0)
    assert roofline.is_memory_bound(200, 1000)
    assert not roofline.is_memory_bound(50, 1000)
    assert (roofline.floor(200, 1000), roofline.floor(50, 1000)) == (2.0, 1.0)
    assert roofline.floor(50, 1000, in_fp8=True) == 1.0  # where they are widened
    fp8 = Roofline(100.0, 1000.0, fp8_flops_per_second=4000.0)
    assert (fp8.floor(10, 1000, in_fp8=True), fp8.floor(10, 1000)) == (0.25, 1.0)
    assert fp8.is_memory_bound(50, 1000, in_fp8=True)


def test_products_with_weights_in_fp8_have_a_roof_of_their_own() -> None:
    for op in profile(2, 300, 300, quantization="fp8").operations:
        rate = 2e12 if op.name.startswith(("linear", "rms_norm_linear")) else 1e12
        assert op.floor == pytest.approx(max(op.num_bytes / 1e9, op.flops / rate))


def test_calls_are_made_before_and_while_they_are_timed() -> None:
    made: list[int] = []
    import torch

    calls = [lambda: made.append(1), lambda: made.append(2)]
    assert time_calls(calls, torch.device("cpu")) > 0
    assert made == [1, 2] * 4  # once to warm up, then three runs


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", MODEL, "--device", "cpu", "--batch-size", "2", "--context", "33"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "decoding, 2 x 33 tokens" in text
    assert "all of these" in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == {"num_requests": 2, "num_new": 1, "context": 33}
    assert found["operations"]


@pytest.mark.parametrize("rate", [1.0, 1e30])
def test_what_is_above_the_roofline_is_explained(
    rate: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_profile, "measure_roofline", lambda *_, **__: Roofline(rate, rate))
    assert main(["profile", MODEL, "--device", "cpu", "--context", "9"]) == 0
    assert ("above 100%: " in capsys.readouterr().out) == (rate == 1.0)


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "step.png"
    assert main(["profile", MODEL, "--device", "cpu", "--prefill", "9", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "prefill, 1 x 9 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--prefill", "8", "--context", "9"], "give one of them"),
        (["--batch-size", "0"], "--batch-size is 0; give at least 1"),
        (["--batch-size", "1g"], "does not fit in memory; lower --batch-size, --context or"),
        (["--plot", "nowhere/x.png"], "give a .png in a folder that is there"),
        (["--plot", "x.pdf"], "give a .png in a folder that is there"),
        (["--context", "1000000"], "--context is 1000000, but the model knows positions up to"),
    ],
)
def test_mistakes(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", MODEL, "--device", "cpu", *words]) == 2
    assert told in capsys.readouterr().err
