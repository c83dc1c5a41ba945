"""Codes of 4 and 8 bits in rows, as checkpoints of integers all come down to.

Owns the way from such rows to canonical rows or to numbers, and act-order: the order in which
inputs were grouped, from the group of each (g_idx). Where a checkpoint's bits lie is known to its
own file. Codes are unsigned: (code - zero) · scale, where zero is half of their range if there are
no zero points. Codes of fewer bits are moved to the middle of the wider range, with their zero
points, so that their numbers stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from quire.kernels.byte_operands import ByteWeight
from quire.kernels.operands import Int4Weight, Int8Weight, QuantizedWeight
from quire.kernels.reference_arrays import few_rows
from quire.kernels.reference_quantized import PIECE_ELEMENTS
from quire.models.checkpoint_formats.checkpoint_format import ROW_BITS, in_float16, row_bits


@dataclass(frozen=True, slots=True)
class IntegerRows:
    """Rows of codes, `bits` each, of which the first lies in the lower bits of a byte.

    permutation: column i of the codes belongs to input permutation[i]; None where that is i.
    rounds: whether activations are rounded to bytes, too, where codes have eight bits.
    """

    codes: Tensor  # uint8 [N, K · bits / 8]
    scale: Tensor  # [N, groups]
    zeros: Tensor | None  # uint8 [N, groups]
    bits: int
    permutation: Tensor | None = None  # int32 [K]
    rounds: bool = False

    @property
    def k(self) -> int:
        """The number of inputs."""
        return self.codes.shape[1] * 8 // self.bits

    def in_groups(self, group: int, size: int) -> IntegerRows:
        """Rows of equal numbers in groups of one size, also where the last one is partial.

        group: inputs that share a scale; size: a number that divides it and all inputs.
        """
        if group == size:
            return self
        times, count = group // size, self.k // size
        zeros = None if self.zeros is None else _repeated(self.zeros, times, count)
        return replace(self, scale=_repeated(self.scale, times, count), zeros=zeros)

    def canonical(self) -> QuantizedWeight:
        """An operand of linear layers. Raises ValueError for scales out of range."""
        if self.bits == 8:
            return self._in_bytes()
        scale = in_float16(self.scale).contiguous()
        group = self.codes.shape[1] * 2 // scale.shape[1]
        zeros = None if self.zeros is None else self.zeros.contiguous()
        return Int4Weight(self.codes.contiguous(), scale, zeros, group, False, self.permutation)

    def _in_bytes(self) -> QuantizedWeight:
        """Codes of eight bits, signed, as zero points become."""
        codes, scale = (self.codes ^ 128).contiguous().view(torch.int8), self.scale.float()
        if self.rounds:
            assert self.zeros is None
            return Int8Weight(codes, scale.squeeze(1).contiguous(), hadamard=False)
        zeros = None if self.zeros is None else (self.zeros ^ 128).contiguous().view(torch.int8)
        group = codes.shape[1] // scale.shape[1]
        order = self.permutation
        return ByteWeight(codes, scale.contiguous(), zeros, "int8_group", group, order)

    def numbers(self, dtype: torch.dtype) -> Tensor:
        """The weight [N, K] that they stand for, with its inputs in their own order."""
        n, k = len(self.codes), self.k
        out = torch.empty(n, k, dtype=dtype, device=self.codes.device)
        for rows in few_rows(n, k, PIECE_ELEMENTS):
            codes = unpacked(self.codes[rows], self.bits).float()
            zeros = (
                2 ** (self.bits - 1) if self.zeros is None else self.zeros[rows, :, None].float()
            )
            groups = torch.unflatten(codes, 1, (self.scale.shape[1], -1)) - zeros
            found = (groups * self.scale[rows, :, None].float()).flatten(1).to(dtype)
            if self.permutation is None:
                out[rows] = found
            else:
                out[rows, self.permutation.long()] = found
        return out


def _repeated(of_groups: Tensor, times: int, count: int) -> Tensor:
    """[N, groups] with each column so many times, as far as the inputs go."""
    return of_groups.repeat_interleave(times, 1)[:, :count]


def unpacked(codes: Tensor, bits: int) -> Tensor:
    """uint8 [N, K · bits / 8], the first code in the lower bits, to uint8 [N, K]."""
    if bits == 8:
        return codes
    return torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)


def packed(codes: Tensor, bits: int) -> Tensor:
    """The inverse of `unpacked`."""
    return codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4


def check_groups(g_idx: Tensor, group: int) -> None:
    """Raise ValueError unless groups have that many inputs each; the last one has the rest."""
    if _has_none(g_idx):
        return
    expected = torch.arange(len(g_idx), dtype=g_idx.dtype, device=g_idx.device) // group
    if not torch.equal(g_idx.sort().values, expected):
        count = -(-len(g_idx) // group)
        raise ValueError(f"it does not put its inputs into {count} groups of one size")


def _has_none(g_idx: Tensor) -> bool:
    """Whether groups are those of the inputs' own order: llm-compressor then stores only -1."""
    return bool((g_idx == -1).all())


def permutation_of(g_idx: Tensor) -> Tensor | None:
    """The inputs sorted by group, int32 [K]; None where they are."""
    if _has_none(g_idx):
        return None
    order = torch.argsort(g_idx, stable=True).int()
    ordered = torch.arange(len(order), dtype=torch.int32, device=order.device)
    return None if torch.equal(order, ordered) else order


def sorted_by_group(codes: Tensor, g_idx: Tensor | None, bits: int) -> tuple[Tensor, Tensor | None]:
    """Packed rows [N, K · bits / 8] with their inputs sorted by group, and the permutation."""
    permutation = None if g_idx is None else permutation_of(g_idx)
    if permutation is not None:
        codes = packed(unpacked(codes, bits)[:, permutation.long()], bits)
    return codes, permutation


def words_as_rows(words: Tensor, bits: int, *, padded: bool = False) -> Tensor:
    """int32 words [N, `num_words` of K], lower bits first, as rows of `row_bits`, uint8.

    padded: see `num_words`. Where bits are left in the last word, there are columns for these, too.
    """
    flat = words.contiguous().flatten()  # of one column, strides may be any
    rows = flat.view(torch.uint8).view(len(words), -1)
    if bits in ROW_BITS:
        return rows
    codes = _from_words(words, bits) if padded else _from_stream(rows, bits)
    return packed(codes + code_offset(bits), row_bits(bits))


def unsigned(name: str, tensors: Mapping[str, Tensor], bits: int) -> Tensor:
    """Signed codes, a byte each, in the range of rows, uint8. Raises ValueError for larger ones."""
    codes, half = tensors[name], 1 << bits - 1
    if int(codes.min()) < -half or int(codes.max()) >= half:
        raise ValueError(
            f"its {name} has codes of more than {bits} bits; take the config.json of the checkpoint"
        )
    wide = row_bits(bits)
    return codes.view(torch.uint8) + (1 << wide - 1) & (1 << wide) - 1


def code_offset(bits: int) -> int:
    """The number that moves codes of so few bits to the middle of the range of `row_bits`."""
    return (1 << row_bits(bits) - 1) - (1 << bits - 1)


def _from_words(words: Tensor, bits: int) -> Tensor:
    """Codes of words [N, W] that lie in one word each, as uint8 [N, W · (32 // bits)]."""
    shifts = torch.arange(32 // bits, dtype=torch.int32, device=words.device) * bits
    codes: Tensor = words[:, :, None] >> shifts & 2**bits - 1
    return codes.to(torch.uint8).flatten(1)


def _from_stream(rows: Tensor, bits: int) -> Tensor:
    """Codes that follow each other in bytes [N, B], lower bits first, as uint8 [N, B · 8 / bits].

    A code may be in two bytes; `bits` bytes have eight codes.
    """
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % bits))
    eight = torch.zeros(len(rows), rows.shape[1] // bits, dtype=torch.int64, device=rows.device)
    for index in range(bits):
        eight |= rows[:, index::bits].long() << 8 * index
    out = torch.empty(*eight.shape, 8, dtype=torch.uint8, device=rows.device)
    for index in range(8):
        out[:, :, index] = eight >> bits * index & 2**bits - 1
    return out.flatten(1)
