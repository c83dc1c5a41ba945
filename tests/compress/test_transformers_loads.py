"""What `quire quantize` writes, read by transformers with the libraries that own the formats.

Skipped where a library is not installed: `pip install compressed-tensors bitsandbytes accelerate
gptqmodel optimum`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import SAMPLES, SIZES, logits, quantize, write_model

from quire.compress.model_parts import ModelParts
from quire.compress.recipe import Recipe

CPU = torch.device("cpu")
COMPRESSED, GPTQ, BNB = "compressed_tensors", "gptqmodel", "bitsandbytes"
NEEDED = {GPTQ: ("optimum",), BNB: ("accelerate",)}  # by transformers, beside them
# library, method, settings, data type; the largest difference of logits, which are up to 9
CASES = [
    (COMPRESSED, "rtn", {}, torch.float32, 1e-3),
    (COMPRESSED, "rtn", {"symmetric": False}, torch.float32, 0.2),  # as dense bfloat16, see `load`
    (COMPRESSED, "gptq", {"format": "compressed-tensors"}, torch.float32, 1e-3),
    (COMPRESSED, "int8", {}, torch.float32, 1e-3),
    (COMPRESSED, "fp8", {}, torch.float32, 1e-3),
    (COMPRESSED, "fp8+gptq", {}, torch.float32, 1e-3),
    (COMPRESSED, "fp8+gptq", {"weight_only": True}, torch.float32, 1e-3),
    (COMPRESSED, "mxfp4", {}, torch.bfloat16, 0.6),
    (BNB, "nf4", {}, torch.float32, 0.6),  # computes in bfloat16
    (BNB, "nf4", {"double_quantization": True}, torch.float32, 0.6),
    (GPTQ, "gptq", {}, torch.float32, 0.02),
    (GPTQ, "gptq", {"symmetric": False}, torch.float32, 0.02),
    (GPTQ, "gptq", {"act_order": "group"}, torch.float32, 0.02),
    (GPTQ, "gptq", {"ignore": ("*.0.*.k_proj", "*.down_proj")}, torch.float32, 0.02),
    (GPTQ, "awq", {}, torch.float32, 0.02),
]


@pytest.mark.parametrize(("library", "method", "settings", "dtype", "most"), CASES)
@pytest.mark.filterwarnings("ignore")  # of the libraries
@torch.no_grad()
def test_transformers_computes_the_same_logits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    method: str,
    settings: dict[str, Any],
    dtype: torch.dtype,
    most: float,
) -> None:
    """Without rounding of activations, whose scales differ (compressed-tensors: amax / 127.5)."""
    for module in (library, *NEEDED.get(library, ())):
        pytest.importorskip(module)
    torch.set_num_threads(1)
    monkeypatch.setattr(ModelParts, "activation_rounding", lambda *_: None)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    for name, size in sizes.items():  # of which NF4 and kernels of GPTQModel need multiples
        monkeypatch.setitem(SIZES, name, size)
    write_model(tmp_path / "base")
    quantize(tmp_path / "base", tmp_path / "out", Recipe(method=method, group_size=32, **settings))
    ids = SAMPLES.verification[0]
    model = load(tmp_path / "out", dtype, library, settings)
    for module in model.modules():
        if scheme := getattr(module, "quantization_scheme", None):
            scheme.input_activations = None
    theirs = model(torch.tensor([ids])).logits[0].float()
    own, base = (logits(ModelParts(tmp_path / name, CPU), ids) for name in ("out", "base"))
    torch.testing.assert_close(own, theirs, atol=most, rtol=0.0)
    assert (own - theirs).abs().mean() < 0.3 * (base - theirs).abs().mean()


def load(folder: Path, dtype: torch.dtype, library: str, settings: dict[str, Any]) -> Any:
    """The model by transformers.

    compressed-tensors 0.19 and 0.20 make no place for packed zero points, their own ones included
    (`PackedQuantizationCompressor.compress` on the meta device), except where the weights are
    dequantized as they are loaded.
    """
    options: dict[str, Any] = {"dtype": dtype}
    if library == COMPRESSED and not settings.get("symmetric", True):
        options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
