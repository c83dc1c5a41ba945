"""Checkpoints of AWQ in its GEMM packing: four bits with zero points. No torch at import.

qweight [K, N / 8]: eight outputs share a word, in the order 0 2 4 6 1 3 5 7; qzeros [K / group,
N / 8] likewise; scales [K / group, N]. (Lin et al., 2024; AutoAWQ's `gemm`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from quire.config_file import ConfigFile
from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import SCALE_DTYPES, StoredTensor
from quire.models.checkpoint_formats.integer_linear import (
    IntegerLinear,
    group_problem,
    integer_spec,
    num_groups,
)
from quire.models.checkpoint_formats.module_rules import (
    ModuleRules,
    first_text,
    read_dynamic,
    read_ignored,
)

if TYPE_CHECKING:
    from torch import Tensor

    from quire.models.checkpoint_formats.integer_rows import IntegerRows

_SHARED = 8  # outputs of a word
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of outputs in a word, lowest bits first


@dataclass(frozen=True, slots=True)
class AwqLinear(IntegerLinear):
    """A weight in AWQ's GEMM packing. group: inputs that share a scale; -1 for all."""

    config_names: ClassVar[Mapping[str, str]] = {"group": "group_size"}
    group: int

    def problem(self, n: int, k: int) -> str | None:
        """See `StoredLinear`."""
        if n % _SHARED or k % 2:
            return f"{n} outputs are not a multiple of {_SHARED}, or {k} inputs odd"
        return group_problem(self.group)

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`."""
        return integer_spec(4, self.group, k, zeros=True)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        groups = num_groups(self.group, k)
        return {
            "qweight": StoredTensor(((k, n // _SHARED),), ("I32",)),
            "qzeros": StoredTensor(((groups, n // _SHARED),), ("I32",)),
            "scales": StoredTensor(((groups, n),), SCALE_DTYPES),
        }

    def integer_rows(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        """See `IntegerLinear`."""
        from quire.models.checkpoint_formats.integer_rows import IntegerRows, unpacked

        codes, words = rows_of(tensors["qweight"]), tensors["qzeros"]
        groups = len(words)  # maybe odd, so each is read twice
        zeros = unpacked(rows_of(words.repeat_interleave(2, 0)), 4)[:, : 2 * groups : 2]
        return IntegerRows(codes, tensors["scales"].t(), zeros, 4)


def rows_of(words: Tensor) -> Tensor:
    """int32 words [K, N / 8] with K even to rows of codes uint8 [N, K / 2], in order of outputs.

    Each of a word's four bytes holds two outputs: all that is moved is bytes, which is fast.
    """
    import torch

    k, count = words.shape
    by_byte = words.t().contiguous().view(torch.uint8).view(count, k, 4)
    out = torch.empty(count, _SHARED, k // 2, dtype=torch.uint8, device=words.device)
    for index in range(4):
        first, second = (by_byte[:, start::2, index].contiguous() for start in (0, 1))
        out[:, ORDER[2 * index]] = first & 15 | second << 4
        out[:, ORDER[2 * index + 1]] = first >> 4 | second & 240
    return out.flatten(0, 1)


def read_awq(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError.

    `zero_point` is not looked at: where it is false (AutoRound, GPTQModel), qzeros are all 8.
    """
    _read_bits(config, config.integer("w_bit", 4))
    key, version = first_text(config, ("version", "format", "checkpoint_format"), "gemm")
    if version.lower() != "gemm":
        raise config.wrong(key, f"is {version!r}; take a checkpoint in AWQ's 'gemm' packing")
    group = config.integer("group_size", config.integer("q_group_size", 128, low=-1), low=-1)
    rules, ignored = read_ignored(config, "modules_to_not_convert")
    linear = AwqLinear(config.location, group)
    return ModuleRules(
        name="awq",
        linear=linear,
        rules=rules + read_dynamic(config, linear, _changed),
        ignored=ignored,
        has_head=config.boolean("lm_head", False),
        choice=f"modules_to_not_convert, dynamic and lm_head of {config.location}",
    )


def _read_bits(config: ConfigFile, default: int = 4) -> None:
    """Raise CheckpointError for codes that have not four bits."""
    bits = config.integer("bits", default)
    if bits != 4:
        raise config.wrong("bits", f"is {bits}, but AWQ is read with 4; take another checkpoint")


def _changed(linear: AwqLinear, config: ConfigFile) -> AwqLinear:
    """The layout of modules with their own settings, as GPTQModel writes them."""
    _read_bits(config)
    return replace(linear, group=config.integer("group_size", linear.group, low=-1))
