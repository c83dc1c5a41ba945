"""Sources of the loss of 8-bit weights and activations: one part of a model at a time.

python benchmarks/quantization_trained.py --only none --parts     # of the model trained there
python benchmarks/quantization_parts.py                           # of the bundled model

Each row rounds the weights, or the inputs, of some linear layers, and leaves all others as they
are. All of it is in float32, by the rounding of `quire quantize` and of `quire verify`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import record
import torch
from quantization_methods import brief, training_windows
from quantization_quality import read_samples
from torch import Tensor

from quire.compress.code_grids import FloatGrid, IntegerGrid
from quire.compress.model_parts import ModelParts, linears_of, set_linear, set_weight, weight_of
from quire.compress.quantize_model import Quantization
from quire.compress.quantized_rows import nearest, nearest_fp8
from quire.compress.recipe import Recipe
from quire.compress.text_samples import TextSamples
from quire.compress.verify_model import compare_models
from quire.hub import resolve_model
from quire.kernels import reference
from quire.kernels.reference_quantized import round_int8
from quire.models.families.llama import LlamaDecoderLayer
from quire.tokenizer.tokenizer import Tokenizer

ROLES = {
    "qkv": "self_attn.qkv_proj", "o": "self_attn.o_proj", "gate_up": "mlp.gate_up_proj",
    "down": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True)
class Rounded:
    """Rounding of the weight and the inputs of a linear layer: "fp8", "int8", "gptq" (a weight
    of `fp8+gptq`) or "no"."""

    weight: str = "no"
    inputs: str = "no"


FP8, INT8, GPTQ = Rounded("fp8", "fp8"), Rounded("int8", "int8"), Rounded("gptq", "fp8")
NO = Rounded()


def every(all_of_them: Rounded, **others: Rounded) -> dict[str, Rounded]:
    """One rounding for all linear layers but some."""
    return dict.fromkeys(ROLES, all_of_them) | others


ROWS: dict[str, dict[str, Rounded]] = {
    "FP8": every(FP8),
    "FP8, weights alone": every(Rounded(weight="fp8")),
    "FP8, inputs alone": every(Rounded(inputs="fp8")),
    **{f"FP8 in {role} alone": every(NO, **{role: FP8}) for role in ROLES},
    "FP8 + GPTQ": every(GPTQ),
    "FP8 + GPTQ, inputs of gate and up exact": every(GPTQ, gate_up=Rounded("gptq")),
    "FP8 + GPTQ, inputs of down exact": every(GPTQ, down=Rounded("gptq")),
    "FP8, gate and up in INT8": every(FP8, gate_up=INT8),
    "FP8, qkv, gate and up in INT8": every(FP8, qkv=INT8, gate_up=INT8),
    "FP8 + GPTQ, gate and up in INT8": every(GPTQ, gate_up=INT8),
    "FP8 + GPTQ, qkv, gate and up in INT8": every(GPTQ, qkv=INT8, gate_up=INT8),
    "FP8 + GPTQ, inputs exact": every(Rounded("gptq")),
    "INT8": every(INT8),
    "INT8, weights alone": every(Rounded(weight="int8")),
}


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("--model", default="quire-tiny")
    parser.add_argument("--samples", type=int, default=24, help="windows for calibration")
    parser.add_argument("--texts", type=int, default=4, help="held-out windows of text")
    parser.add_argument("--chats", type=int, default=6, help="held-out chats of each kind")
    parser.add_argument("--seconds", type=float, default=600, help="no row begins after so many")
    parser.add_argument("--only", help="names of rows, with semicolons between")
    args = parser.parse_args()
    base, begin = resolve_model(args.model), time.monotonic()
    calibration = training_windows(Tokenizer.from_folder(base), args.samples, 512)
    samples = TextSamples(calibration, read_samples(base, args.texts, args.chats), "training mix")
    measured = {"model": args.model, "calibration_tokens": sum(map(len, calibration))}
    only = None if args.only is None else args.only.split(";")
    measure_rows(base, samples, measured, begin + args.seconds, args.out, only)


def measure_rows(
    base: Path,
    samples: TextSamples,
    measured: dict[str, Any],
    end: float,
    results: Path,
    only: list[str] | None = None,
) -> None:
    """Measure all rows, and save them after each one. end: by time.monotonic()."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    measured = {**measured, "tokens": sum(map(len, samples.verification)), "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "gptq")
        for what, roles in ROWS.items():
            if time.monotonic() > end or (only is not None and what not in only):
                print(f"{what}: left out")
                continue
            if not out.exists() and any(each.weight == "gptq" for each in roles.values()):
                recipe = Recipe(method="fp8+gptq")
                Quantization(base, out, recipe, samples, device).run(lambda *_: None)
            parts = PartlyRounded(base, out, device, roles)
            report = compare_models(
                ModelParts(base, device), parts, samples.verification, [], lambda *_: None
            )
            report["layers"] = [each["mean"] for each in report["layers"]]
            measured["rows"].append({"what": what, **report})
            print(what, brief(report), flush=True)
            record.save("quantization_parts", measured, results)


class PartlyRounded(ModelParts):
    """The base model with some of its linear layers rounded. roles: by the keys of `ROLES`."""

    def __init__(
        self, base: Path, coded: Path, device: torch.device, roles: Mapping[str, Rounded]
    ) -> None:
        super().__init__(base, device)
        self._coded = ModelParts(coded, device) if coded.exists() else None
        self._roles = {ROLES[role]: rounded for role, rounded in roles.items()}

    def layer(self, index: int) -> LlamaDecoderLayer:
        """See `ModelParts`."""
        layer, linears = super().layer(index), None
        for name, linear in linears_of(layer).items():
            wanted = self._roles[name]
            if wanted.weight == "gptq":
                linears = linears or linears_of(self._coded.layer(index))
                set_weight(linear, weight_of(linears[name]))
            else:
                set_weight(linear, _WEIGHTS[wanted.weight](weight_of(linear)))
            set_linear(linear, partial(_linear, _INPUTS[wanted.inputs]))
        return layer


def _linear(
    rounding: Callable[[Tensor], Tensor], x: Tensor, weight: Any, bias: Tensor | None
) -> Tensor:
    return reference.linear(rounding(x), weight, bias)


def _fp8_rows(x: Tensor) -> Tensor:
    codes, scale = reference.quantize_rows(x)
    return codes.float() * scale


def _int8_rows(x: Tensor) -> Tensor:
    codes, scale = round_int8(x)
    return codes.float() * scale


_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "no": lambda weight: weight,
    "fp8": lambda weight: nearest_fp8(weight, FloatGrid("bfloat16")).numbers(),
    "int8": lambda weight: nearest(weight, IntegerGrid(8, -1, True, "bfloat16")).numbers(),
}
_INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "no": lambda x: x,
    "fp8": _fp8_rows,
    "int8": _int8_rows,
}

if __name__ == "__main__":
    main()
