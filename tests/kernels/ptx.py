"""An interpreter of the few PTX instructions by which kernels unpack codes."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

_PAIRS: dict[str, Callable[..., Tensor]] = {
    "fma.rn": lambda x, y, z: x * y + z,
    "mul.rn": torch.mul,
    "sub.rn": torch.sub,
}
_PAIR_DTYPES = {"bf16x2": torch.bfloat16, "f16x2": torch.float16}
LARGEST_E4M3 = 448.0


def run_ptx(
    asm: str, registers: dict[str, int], memory: dict[int, int] | None = None
) -> dict[str, int]:
    """The registers after inline assembly in the few instructions that unpack words.

    memory: words of shared memory by their addresses.
    """
    for op, rest in re.findall(r"(?<![\w.$])([a-z][a-z0-9_]*\.[\w.]+)\s+([^;]+);", asm):
        names = [name.strip(" {}[]") for name in rest.split(",")]
        a, *others = [
            registers[name] if name in registers else int(name, 0) if name[0].isdigit() else 0
            for name in names[1:]
        ]
        if op == "ld.shared.b32":
            assert memory is not None
            registers[names[0]] = memory[a]
        elif op == "st.shared.v4.b32":  # of one word four times, by its address
            assert memory is not None
            memory[registers[names[0]]] = a
        else:
            registers[names[0]] = _instruction(op, a, others)
    return registers


def pair_of(word: int, dtype: torch.dtype) -> Tensor:
    """The two numbers of 16 bits of a word, in float64."""
    halves = torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32).to(torch.int16)
    return halves.view(dtype).double()


def word_of(numbers: Tensor) -> int:
    """A word with four numbers of 8 bits."""
    return int.from_bytes(bytes(numbers.view(torch.uint8).tolist()), "little")


def bf16_pair(word: int) -> Tensor:
    """The two bfloat16 of a word, in float64."""
    return pair_of(word, torch.bfloat16)


def _bytes(word: int) -> bytes:
    return word.to_bytes(4, "little")


def _instruction(op: str, a: int, others: list[int]) -> int:
    if op in ("mov.b32", "mov.u32"):  # of one word, or of two halves
        return a | others[0] << 16 if others else a
    if op == "shl.b32":
        return a << others[0] & 0xFFFFFFFF
    if op == "shr.u32":
        return a >> others[0]
    if op == "and.b32":
        return a & others[0]
    if op in ("mul.lo.u32", "mad.lo.u32"):
        return a * others[0] + sum(others[1:]) & 0xFFFFFFFF
    if op == "dp4a.u32.u32":
        terms = (x * y for x, y in zip(_bytes(a), _bytes(others[0]), strict=True))
        return sum(terms) + others[1] & 0xFFFFFFFF
    if op in ("add.u32", "sub.u32"):
        return (a + others[0] if op == "add.u32" else a - others[0]) & 0xFFFFFFFF
    if op == "cvt.rn.satfinite.e4m3x2.f16x2":
        rounded = pair_of(a, torch.float16).clamp(-LARGEST_E4M3, LARGEST_E4M3)
        low, high = rounded.float().to(torch.float8_e4m3fn).view(torch.uint8).tolist()
        return low | high << 8
    name, _, kind = op.rpartition(".")
    if name in _PAIRS:
        dtype = _PAIR_DTYPES[kind]
        made = _PAIRS[name](*(pair_of(each, dtype) for each in (a, *others)))
        low, high = made.to(dtype).view(torch.int16).tolist()
        return low & 0xFFFF | (high & 0xFFFF) << 16
    if op == "lop3.b32":
        b, c, table = others
        return sum(
            (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i
            for i in range(32)
        )
    assert op == "prmt.b32"
    both, selector, result = a | others[0] << 32, others[1], 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = both >> 8 * (nibble & 7) & 255
        if nibble & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << 8 * i
    return result
