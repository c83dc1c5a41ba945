"""Tensors of a quantized checkpoint, and the entry of its config.json. No torch.

Owns the `quantization_config` that transformers, vLLM and llm-compressor read, and which weights
each packing can hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from quire.models.checkpoint_formats.awq import AwqLinear
from quire.models.checkpoint_formats.bitsandbytes import FourBitLinear
from quire.models.checkpoint_formats.checkpoint_format import LARGEST_EXPONENT, StoredLinear
from quire.models.checkpoint_formats.gptq import GptqLinear
from quire.models.checkpoint_formats.stored_fp4 import Mxfp4Linear
from quire.models.checkpoint_formats.stored_fp8 import Fp8Linear
from quire.models.checkpoint_formats.stored_int8 import Int8Linear
from quire.models.checkpoint_formats.stored_packed import PackedLinear
from quire.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

    from quire.compress.quantized_rows import CodedRows

Packing = Literal[
    "awq", "gptq", "pack-quantized", "int-quantized", "float-quantized", "nf4",
    "mxfp4-pack-quantized",
]  # fmt: skip
ActOrder = Literal["off", "static", "group"]


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """A packing with its settings. group: inputs that share a scale; -1 for all of them.

    act_order: "group" where groups follow the order of activations, so that g_idx is stored.
    scale_dtype: of stored scales. is_nested: whether NF4's are quantized, too. weight_only: whether
    FP8 is for activations that stay in 16 bits.
    """

    packing: Packing
    bits: int
    group: int
    symmetric: bool
    act_order: ActOrder
    scale_dtype: str
    is_nested: bool = False
    weight_only: bool = False

    @property
    def stored_linear(self) -> StoredLinear:
        """The `StoredLinear` by which readers recognise a weight that is stored in this layout."""
        group, symmetric = self.group, self.symmetric
        if self.packing == "awq":
            return AwqLinear(self.packing, group)
        if self.packing == "gptq":
            ordered = self.act_order == "group"
            return GptqLinear(self.packing, self.bits, group, symmetric, ordered, True)
        if self.packing == "pack-quantized":
            return PackedLinear(self.packing, self.bits, group, symmetric, False)
        if self.packing == "int-quantized":
            return Int8Linear(self.packing, rounds=True, per="channel")
        if self.packing == "nf4":
            return FourBitLinear(self.packing, "nf4", self.is_nested)
        if self.packing == "mxfp4-pack-quantized":
            return Mxfp4Linear(self.packing, "weight_packed", "weight_scale")
        return Fp8Linear(self.packing, "weight_scale", None, "channel", not self.weight_only)

    @property
    def scale_limit(self) -> float:
        """All scales are below it; readers have those of four bits in float16, but MXFP4's."""
        in_float16 = self.bits == 4 and self.packing != "mxfp4-pack-quantized"
        return 65504.0 if in_float16 else 2.0**LARGEST_EXPONENT

    def problem(self, n: int, k: int) -> str | None:
        """The reason why a weight [n, k] cannot be stored in this layout; None if it can."""
        if problem := self.stored_linear.problem(n, k):
            return problem
        is_partial = self.group > 0 and k % self.group  # few engines read such groups
        what = "" if self.packing == "nf4" else "group_size "
        return f"{k} inputs are not a multiple of {what}{self.group}" if is_partial else None

    def tensors(self, rows: CodedRows) -> dict[str, Tensor]:
        """The tensors of a module's weight, by their names in it."""
        from quire.compress import packing
        from quire.compress.quantized_rows import CodebookCodes, FloatCodes
        from quire.kernels.torch_dtypes import torch_dtype

        if isinstance(rows, FloatCodes):
            return packing.fp8_tensors(rows, torch_dtype(self.scale_dtype))
        if isinstance(rows, CodebookCodes):
            if self.packing == "nf4":
                return packing.nf4_tensors(rows, self.scale_dtype, is_nested=self.is_nested)
            return packing.mxfp4_tensors(rows)
        pack = {
            "awq": packing.awq_tensors,
            "gptq": packing.gptq_tensors,
            "pack-quantized": packing.packed_tensors,
            "int-quantized": packing.int8_tensors,
        }[self.packing]
        return pack(rows)

    def config(self, chosen: Sequence[str], ignored: Sequence[str]) -> dict[str, Any]:
        """The `quantization_config`.

        chosen, ignored: modules that are quantized, and that are not, the head included.
        """
        if self.packing == "awq":
            return self._awq(ignored)
        if self.packing == "nf4":
            return self._bitsandbytes(ignored)
        return self._gptq(chosen, ignored) if self.packing == "gptq" else self._compressed(ignored)

    def _awq(self, ignored: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": self.bits,
            "group_size": self.group,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": list(ignored),
        }

    def _gptq(self, chosen: Sequence[str], ignored: Sequence[str]) -> dict[str, Any]:
        rules: dict[str, Any] = {
            f"-:^{re.escape(module)}$": {} for module in ignored if module != "lm_head"
        }
        # GPTQModel and vLLM read the rules, transformers only the other list
        mixed = {"dynamic": rules, "modules_in_block_to_quantize": [list(chosen)]}
        return {
            "quant_method": "gptq",
            "bits": self.bits,
            "group_size": self.group,
            "sym": self.symmetric,
            "desc_act": self.act_order == "group",
            "static_groups": self.act_order == "static",
            "true_sequential": True,
            "lm_head": False,
            "checkpoint_format": "gptq",
            "meta": {"quantizer": [f"quire:{__version__}"]},
            **(mixed if rules else {}),
        }

    def _bitsandbytes(self, ignored: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_use_double_quant": self.is_nested,
            "bnb_4bit_compute_dtype": self.scale_dtype,
            "llm_int8_skip_modules": list(ignored),
        }

    def _compressed(self, ignored: Sequence[str]) -> dict[str, Any]:
        group = {
            "targets": ["Linear"],
            "weights": self._weights(),
            "input_activations": self._activations(),
            "output_activations": None,
            "format": self.packing,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": self.packing,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignored),
            "kv_cache_scheme": None,
        }

    def _weights(self) -> dict[str, Any]:
        by_group = self.group != -1
        found = {
            "num_bits": self.bits,
            "type": "float" if "float" in self.packing or "fp4" in self.packing else "int",
            "symmetric": self.symmetric,
            "strategy": "group" if by_group else "channel",
            "dynamic": False,
            "observer": "minmax",
        }
        if by_group:
            found["group_size"] = self.group
        if by_group and self.act_order == "static":
            found["actorder"] = "static"
        return found

    def _activations(self) -> dict[str, Any] | None:
        if self.weight_only or self.packing not in ("int-quantized", "float-quantized"):
            return None
        kind = "float" if self.packing == "float-quantized" else "int"
        settings = {"num_bits": 8, "type": kind, "symmetric": True}
        return {**settings, "strategy": "token", "dynamic": True, "observer": None}
