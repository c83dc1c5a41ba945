"""Checkpoints of 8 bits, whose codes stay codes on a GPU, where kernels run them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from quantized_checkpoints import write_quantized
from safetensors.torch import load_file

from quire.config import EngineConfig, ModelSettings
from quire.engine.startup import footprint
from quire.kernels.formats.table import format_of
from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_scheme import choose_formats
from quire.models.config.model_config import ModelConfig


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("gptq_8", QuantSpec("int8_group", 32)),
        ("gptq_8_order", QuantSpec("int8_group", 32, zeros=True, permuted=True)),
        ("packed_8", QuantSpec("int8_group", 128)),
        ("int8_weights", QuantSpec("int8_group", 128)),
        ("float_tensor", QuantSpec("fp8_a16")),
        ("float_channel", QuantSpec("fp8_a16")),
        ("float_block", QuantSpec("fp8_block_a16", 64)),
        ("fp8_block", QuantSpec("fp8_block", 128)),
        ("float_tokens", QuantSpec("fp8")),
        ("fp8", QuantSpec("fp8")),
        ("modelopt", QuantSpec("fp8")),
    ],
)
def test_eight_bits_stay_codes_on_a_gpu(name: str, spec: QuantSpec, tmp_path: Path) -> None:
    """Activations are rounded where the checkpoint asks for it.

    Canonical rows are the numbers that they become on a CPU.
    """
    write_quantized(name, tmp_path)
    config, module = ModelConfig.from_folder(tmp_path), "model.layers.0.self_attn.o_proj"
    checkpoint = config.checkpoint_format
    assert checkpoint is not None
    for device, expected in (("cuda", format_of(spec)), ("cpu", None)):
        scheme = choose_formats(ModelSettings(), checkpoint, config.spec, device)
        assert scheme is not None
        assert scheme.format_for(module, "layer", 128, 128) == expected
    stored = checkpoint.stored_linear(module)
    assert stored is not None
    tensors = load_file(tmp_path / "model.safetensors")
    own = {leaf: tensors[f"{module}.{leaf}"] for leaf in stored.tensors(128, 128)
           if f"{module}.{leaf}" in tensors}  # fmt: skip
    rows, numbers = stored.rows(own), stored.numbers(own, "float32")
    assert rows.spec == spec
    found = format_of(spec).dequantize(rows)
    if (order := rows.tensors.get("permutation")) is not None:
        numbers = numbers[:, order]
    torch.testing.assert_close(found, numbers)


@pytest.mark.parametrize("name", ["gptq_8", "fp8_block", "float_block", "float_channel"])
@pytest.mark.parametrize(
    ("dtype", "capability", "keeps"),
    [
        ("bfloat16", (9, 0), True),
        ("bfloat16", None, True),
        ("float16", (9, 0), False),
        ("bfloat16", (8, 0), ["float_channel"]),
        ("float16", (10, 0), ["float_channel"]),
    ],
)
def test_eight_bits_stay_codes_where_their_kernels_run(
    name: str,
    dtype: str,
    capability: tuple[int, int] | None,
    keeps: bool | list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan has them in as many bytes. keeps: which names do, if not all or none."""
    write_quantized(name, tmp_path)
    model_config = ModelConfig.from_folder(tmp_path)
    options = {"model": tmp_path, "device": "cuda", "dtype": dtype}
    monkeypatch.setattr(footprint, "driver_capability", lambda: capability)
    config = EngineConfig.from_options(**options)
    planned = footprint.weights_by_format(config, model_config, tmp_path)
    assert (len(planned) > 1) == (keeps if isinstance(keeps, bool) else name in keeps)
