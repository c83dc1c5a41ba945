"""Checkpoints of bitsandbytes: NF4 and FP4, and the eight bits of LLM.int8. No torch at import.

Four bits: `weight` uint8 [N · K / 2, 1], of two codes the first in the upper bits, or the same
bytes as another data type; `absmax`, the scale of each 64 numbers in a row; `quant_map`, what codes
stand for. With double quantization the scales have eight bits: nested_quant_map[absmax] ·
nested_absmax + an offset, which stands with the other settings in JSON, as a tensor of bytes.
(Dettmers et al., 2023)

Eight bits: `weight` int8 [N, K] and `SCB`, the largest magnitude of each output.
(Dettmers et al., 2022)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from quire.config_file import ConfigFile
from quire.kernels.operands import QuantSpec
from quire.model_folder import parse_json
from quire.models.checkpoint_formats.checkpoint_format import (
    SCALE_DTYPES,
    StoredLinear,
    StoredTensor,
    in_float16,
)
from quire.models.checkpoint_formats.module_rules import ModuleRules, read_ignored

if TYPE_CHECKING:
    from torch import Tensor

    from quire.kernels.operands import QuantizedWeight

_BLOCK, NESTED_BLOCK = 64, 256  # numbers that share a scale; scales that share one
_KINDS = ("nf4", "fp4")
# of codes: safetensors' name, and bytes of an item
_STORAGES = {
    "uint8": ("U8", 1), "bfloat16": ("BF16", 2), "float16": ("F16", 2), "float32": ("F32", 4),
}  # fmt: skip
_STEP = 1 << 22  # numbers that are made at a time; whole blocks
_MOST_STATE = 1 << 17  # bytes of settings in JSON; real ones have some hundreds
_UNIT = 7.874015718698502e-3  # 1 / 127, as bitsandbytes writes it


@dataclass(frozen=True, slots=True)
class FourBitLinear(StoredLinear):
    """Codes of four bits. kind: "nf4" or "fp4". is_nested: scales have eight bits.

    storage: the data type that the bytes of codes are saved as.
    """

    config_names: ClassVar[Mapping[str, str]] = {
        "kind": "bnb_4bit_quant_type", "is_nested": "bnb_4bit_use_double_quant",
        "storage": "bnb_4bit_quant_storage",
    }  # fmt: skip
    kind: str
    is_nested: bool
    storage: str = "uint8"

    def problem(self, n: int, k: int) -> str | None:
        """See `StoredLinear`."""
        shared = 2 * _STORAGES[self.storage][1]
        return f"{n} · {k} numbers are not a multiple of {shared}" if n * k % shared else None

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`: where no block goes on in the next row."""
        return QuantSpec("nf4", _BLOCK) if self.kind == "nf4" and k % _BLOCK == 0 else None

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        blocks, (dtype, size) = -(-n * k // _BLOCK), _STORAGES[self.storage]
        count = n * k // 2 // size
        found = {
            "weight": StoredTensor(((count, 1), (1, count)), (dtype,), are_codes=True),
            "weight.absmax": StoredTensor(((blocks,),), ("U8" if self.is_nested else "F32",)),
            "weight.quant_map": StoredTensor(((16,),), ("F32",)),
            self._state_name: StoredTensor((), ("U8",)),
        }
        if self.is_nested:
            nested = -(-blocks // NESTED_BLOCK)
            found["weight.nested_absmax"] = StoredTensor(((nested,),), ("F32",))
            found["weight.nested_quant_map"] = StoredTensor(((256,),), ("F32",))
        return found

    def rows(self, tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """See `StoredLinear`: codes as they are, scales in float16."""
        from quire.kernels.formats.nf4 import Nf4
        from quire.kernels.operands import CodebookWeight

        if tuple(tensors["weight.quant_map"].tolist()) != Nf4.numbers:
            raise ValueError("its quant_map has not the numbers of NF4; save the checkpoint again")
        n, k = self._shape(tensors)
        if k % _BLOCK:
            raise ValueError(f"its {self._state_name} has rows of {k}; quantize the model again")
        scale = in_float16(self._scales(tensors)).view(n, k // _BLOCK)
        shared = _bytes(tensors["weight"]).view(n, k // 2)
        return CodebookWeight(shared >> 4 | shared << 4, scale, self.kind, _BLOCK)

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`."""
        import torch

        from quire.kernels.torch_dtypes import torch_dtype

        n, k = self._shape(tensors)
        shared, scales = _bytes(tensors["weight"]), self._scales(tensors)
        out = torch.empty(n * k, dtype=torch_dtype(dtype), device=shared.device)
        for begin in range(0, n * k, _STEP):
            part = shared[begin // 2 : (begin + _STEP) // 2]
            codes = torch.stack([part >> 4, part & 15], dim=1).flatten()
            own = scales[begin // _BLOCK : (begin + _STEP) // _BLOCK]
            wide = own.repeat_interleave(_BLOCK)[: len(codes)]
            out[begin : begin + _STEP] = tensors["weight.quant_map"][codes.int()] * wide
        return out.view(n, k)

    @property
    def _state_name(self) -> str:
        return f"weight.quant_state.bitsandbytes__{self.kind}"

    def _scales(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The scale of each block, float32."""
        stored = tensors["weight.absmax"]
        if not self.is_nested:
            return stored
        wide = tensors["weight.nested_absmax"].repeat_interleave(NESTED_BLOCK)[: len(stored)]
        offset = self._state(tensors).get("nested_offset", 0.0)
        found: Tensor = tensors["weight.nested_quant_map"][stored.int()] * wide + offset
        return found

    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, int]:
        """Outputs and inputs by the settings. Raises ValueError for those that are not read."""
        match self._state(tensors):
            case {"blocksize": 64, "shape": [int() as n, int() as k]} if (
                n > 0 and type(n) is type(k) is int and n * k == 2 * tensors["weight"].nbytes
            ):
                return n, k
        raise ValueError(
            f"its {self._state_name} has not blocks of {_BLOCK} and the shape of its numbers; "
            "quantize the model again"
        )

    def _state(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """The settings, which are JSON. Raises ValueError for what is none."""
        text = tensors[self._state_name].flatten()
        try:
            if len(text) > _MOST_STATE:
                raise ValueError(f"it has {len(text)} bytes")
            found: Any = parse_json(bytes(text.tolist()))
        except ValueError as error:
            raise ValueError(
                f"its {self._state_name} is damaged ({error}); download the file again"
            ) from error
        if isinstance(found, dict):
            offset = found.get("nested_offset", 0.0)
            if isinstance(offset, float) and math.isfinite(offset):
                return found
        raise ValueError(f"its {self._state_name} is damaged; download the file again")


def _bytes(stored: Tensor) -> Tensor:
    """Codes in any data type as uint8, in one dimension."""
    import torch

    return stored.contiguous().flatten().view(torch.uint8)


@dataclass(frozen=True, slots=True)
class EightBitLinear(StoredLinear):
    """Signed codes [N, K], and the largest magnitude of each output."""

    def spec(self, k: int) -> QuantSpec | None:  # noqa: ARG002
        """See `StoredLinear`.

        Codes are not kept: bitsandbytes computes with the outliers of activations in 16 bits, and
        without these, scales per token need the Hadamard rotation.
        """
        return None

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        return {
            "weight": StoredTensor(((n, k),), ("I8",)),
            "SCB": StoredTensor(((n,),), SCALE_DTYPES),
            "weight_format": StoredTensor(((), (1,)), ("U8",), needed=False),
        }

    def numbers(self, tensors: Mapping[str, Tensor], dtype: str) -> Tensor:
        """See `StoredLinear`."""
        import torch

        from quire.kernels.reference_arrays import few_rows
        from quire.kernels.torch_dtypes import torch_dtype

        layout = tensors.get("weight_format")
        if layout is not None and int(layout) != 0:
            raise ValueError(
                "its weight_format is that of tiles for a GPU; save it with bitsandbytes 0.45 or "
                "later"
            )
        codes, largest = tensors["weight"], tensors["SCB"].float()[:, None]
        out = torch.empty(codes.shape, dtype=torch_dtype(dtype), device=codes.device)
        for own in few_rows(len(codes), codes.shape[1], _STEP):
            out[own] = codes[own].float() * largest[own] * _UNIT
        return out


def read_bitsandbytes(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError."""
    where = config.location
    linear: StoredLinear | None = None
    if config.boolean("load_in_8bit", config.boolean("_load_in_8bit", False)):
        linear = EightBitLinear(where)
    elif config.boolean("load_in_4bit", config.boolean("_load_in_4bit", False)):
        linear = _four_bits(config, where)
    if linear is None:
        raise config.wrong(
            "load_in_4bit",
            "and load_in_8bit are false or missing; take a checkpoint that transformers wrote with "
            "bitsandbytes, or the 16-bit one",
        )
    skipped = "llm_int8_skip_modules"
    rules, ignored = read_ignored(config, skipped)
    return ModuleRules(
        name="bitsandbytes",
        linear=linear,
        rules=rules,
        ignored=ignored,
        has_head=config.get(skipped) is not None,  # without a list, transformers skips the head
        choice=f"{skipped} of {config.location}",
        otherwise="int8",
    )


def _four_bits(config: ConfigFile, where: str) -> FourBitLinear:
    kind, storage = config.text("bnb_4bit_quant_type", "fp4"), "bnb_4bit_quant_storage"
    if kind not in _KINDS:
        raise config.wrong("bnb_4bit_quant_type", f"is {kind!r}; take a checkpoint in NF4 or FP4")
    if (stored := config.text(storage, "uint8")) not in _STORAGES:
        known = ", ".join(_STORAGES)
        raise config.wrong(storage, f"is {stored!r}; save the checkpoint with one of {known}")
    return FourBitLinear(where, kind, config.boolean("bnb_4bit_use_double_quant", False), stored)
