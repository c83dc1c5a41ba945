"""Checkpoints of GPTQ: 2, 3, 4 or 8 bits, with and without act-order. No torch at import.

qweight [K · bits / 32, N]: words hold inputs that follow each other, the first in the lowest
bits, one of three bits perhaps in two words; qzeros [groups, N · bits / 32] likewise of outputs,
less 1 in version 1; scales [groups, N]; g_idx [K]: the group of each input. (Frantar et al., 2023;
AutoGPTQ, GPTQModel, AutoRound)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from quire.config_file import ConfigFile
from quire.kernels.operands import QuantSpec
from quire.models.checkpoint_formats.checkpoint_format import SCALE_DTYPES, StoredTensor, row_bits
from quire.models.checkpoint_formats.integer_linear import (
    IntegerLinear,
    group_problem,
    integer_spec,
    num_groups,
    num_words,
    whole_words,
)
from quire.models.checkpoint_formats.module_rules import ModuleRules, first_text, read_dynamic

if TYPE_CHECKING:
    from torch import Tensor

    from quire.models.checkpoint_formats.integer_rows import IntegerRows

_BITS = (2, 3, 4, 8)
_SAMPLE_BYTES, _LEAST_CODES = 1 << 19, 1 << 12  # of a weight, to look where the middle is
_ONE_OFF = 0.2  # steps around one


@dataclass(frozen=True, slots=True)
class GptqLinear(IntegerLinear):
    """A weight of GPTQ. group: inputs that share a scale; -1 for all.

    is_symmetric: all zero points are half of the codes' range. is_ordered: groups were made in the
    order of activations (desc_act); None where the config file does not say so, and g_idx has to.
    stores_less: zero points are stored less 1 (version 1).
    """

    config_names: ClassVar[Mapping[str, str]] = {
        "group": "group_size", "is_symmetric": "sym", "is_ordered": "desc_act", "stores_less": "",
    }  # fmt: skip
    bits: int
    group: int
    is_symmetric: bool
    is_ordered: bool | None
    stores_less: bool

    def problem(self, n: int, k: int) -> str | None:
        """See `StoredLinear`."""
        shared = whole_words(self.bits)
        if n % shared or k % shared:
            return f"{n} outputs or {k} inputs are not a multiple of {shared}"
        return group_problem(self.group)

    def spec(self, k: int) -> QuantSpec | None:
        """See `StoredLinear`. Activations are not rounded to bytes where codes have eight bits."""
        zeros, permuted = not self.is_symmetric, bool(self.is_ordered)
        return integer_spec(self.bits, self.group, k, zeros=zeros, permuted=permuted)

    def tensors(self, n: int, k: int) -> Mapping[str, StoredTensor]:
        """See `StoredLinear`."""
        groups = num_groups(self.group, k)
        has_order = groups > 1 if self.is_ordered is None else self.is_ordered
        return {
            "qweight": StoredTensor(((num_words(k, self.bits), n),), ("I32",)),
            "qzeros": StoredTensor(((groups, num_words(n, self.bits)),), ("I32",)),
            "scales": StoredTensor(((groups, n),), SCALE_DTYPES),
            "g_idx": StoredTensor(((k,),), ("I32", "I64"), needed=has_order),
        }

    def order(self, k: int) -> tuple[str, int] | None:
        """See `StoredLinear`."""
        return "g_idx", k if self.group == -1 else self.group

    def integer_rows(self, tensors: Mapping[str, Tensor]) -> IntegerRows:
        """See `IntegerLinear`."""
        from quire.models.checkpoint_formats.integer_rows import (
            IntegerRows,
            sorted_by_group,
            words_as_rows,
        )

        codes, bits = words_as_rows(tensors["qweight"].t(), self.bits), row_bits(self.bits)
        if self.is_ordered and bool((tensors["g_idx"] < 0).any()):  # as if they were in order
            raise ValueError("its g_idx has inputs of no group; download the file again")
        codes, permutation = sorted_by_group(codes, tensors.get("g_idx"), bits)
        zeros = self._zeros(tensors["qzeros"])
        if zeros is not None and bits == 4:
            self._check_middle(codes, zeros)
        return IntegerRows(codes, tensors["scales"].t(), zeros, bits, permutation)

    def _zeros(self, words: Tensor) -> Tensor | None:
        from quire.models.checkpoint_formats.integer_rows import (
            code_offset,
            unpacked,
            words_as_rows,
        )

        moved, half = code_offset(self.bits), 2 ** (self.bits - 1)
        zeros = unpacked(words_as_rows(words, self.bits), row_bits(self.bits)).t() - moved
        if bool((zeros == (half if self.stores_less else half - 1)).all()):
            raise self._other_version("those of symmetric codes")
        if self.stores_less:
            zeros = zeros + 1 & 2**self.bits - 1
        if not self.is_symmetric:
            return zeros + moved
        if not bool((zeros == half).all()):
            raise ValueError(
                "its qzeros are not those of symmetric codes, but sym of "
                f"{self.source} is true; correct it"
            )
        return None

    def _check_middle(self, codes: Tensor, zeros: Tensor) -> None:
        """Refuse zero points that are one off: codes lie around theirs, as weights around zero.

        Weights have no mean of a whole step: in models it is below a twentieth. Eight bits have
        smaller steps, of which one does little harm.
        """
        from quire.models.checkpoint_formats.integer_rows import unpacked

        rows = max(1, _SAMPLE_BYTES // codes.shape[1])
        some = unpacked(codes[:rows], self.bits)
        middle = float(some.float().mean() - zeros[:rows].float().mean())
        one_off = -1 if self.stores_less else 1
        if some.numel() >= _LEAST_CODES and abs(middle - one_off) < _ONE_OFF:
            raise self._other_version("one off the middle of its codes, as")

    def _other_version(self, what: str) -> ValueError:
        own, other = ("gptq", "gptq_v2") if self.stores_less else ("gptq_v2", "gptq")
        return ValueError(
            f"its qzeros are {what} in {other!r}, but {self.source} says {own!r}; correct its "
            "checkpoint_format (AutoRound's packing_format)"
        )


def read_gptq(config: ConfigFile) -> ModuleRules:
    """The format of a quantization_config. Raises CheckpointError."""
    if config.boolean("is_marlin_format", False):
        raise config.wrong("is_marlin_format", "is true; take a checkpoint in GPTQ's own packing")
    key, version = first_text(config, ("checkpoint_format", "format"), "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise config.wrong(key, f"is {version!r}; take a checkpoint in 'gptq' or 'gptq_v2'")
    linear = GptqLinear(
        config.location,
        read_bits(config, config.integer("bits")),
        config.integer("group_size", -1, low=-1),
        config.boolean("sym", True),
        _is_ordered(config, None),
        version == "gptq",
    )
    return ModuleRules(
        name="gptq",
        linear=linear,
        rules=read_dynamic(config, linear, _changed),
        only=_chosen(config, "modules_in_block_to_quantize"),
        has_head=config.boolean("lm_head", False),
        choice=f"dynamic and lm_head of {config.location}",
    )


def _chosen(config: ConfigFile, key: str) -> tuple[str, ...]:
    """Words of modules that are quantized, from a list of lists. Raises CheckpointError."""
    blocks, found = config.get(key) or [], list[Any]()
    for names in blocks if isinstance(blocks, list) else [None]:
        found += names if isinstance(names, list) else [names]
    if not all(isinstance(name, str) for name in found):
        raise config.wrong(key, "must be lists of names; take the config file of the checkpoint")
    return tuple(found)


def read_bits(config: ConfigFile, bits: int) -> int:
    """The bits of codes. Raises CheckpointError for those that are not read."""
    if bits not in _BITS:
        raise config.wrong("bits", f"is {bits}; take a checkpoint of 2, 3, 4 or 8 bits")
    return bits


def _is_ordered(config: ConfigFile, default: bool | None) -> bool | None:
    key = "desc_act"
    return default if config.get(key) is None else config.boolean(key)


def _changed(linear: GptqLinear, config: ConfigFile) -> GptqLinear:
    values: dict[str, Any] = {
        "bits": read_bits(config, config.integer("bits", linear.bits)),
        "group": config.integer("group_size", linear.group, low=-1),
        "is_symmetric": config.boolean("sym", linear.is_symmetric),
        "is_ordered": _is_ordered(config, linear.is_ordered),
    }
    return replace(linear, **values)
