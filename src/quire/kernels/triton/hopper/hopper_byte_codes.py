"""Codes of eight bits as bfloat16, in the registers from which Hopper's tensor cores take them.

The words are in the order that `ops/byte_words.py` describes: half a word has two codes, so that
two instructions for both halves make two numbers. INT8: 0x4300 | seven bits is 128 more in
bfloat16, and 0x4300 | the eighth, where it stands, is 128 or 256, which is subtracted. FP8 (e4m3):
its bits are shifted to where bfloat16 has them, which is 2^-120 times the number, subnormal ones
included.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def byte_boxes(words: Tensor, parts: int, block_n: int) -> TensorDescriptor:
    """Boxes [2, parts, block_n, 32] of words [N, K / 4], seen as [2, K / 256, N, 32]."""
    (n, width), layout = words.shape, gl.NVMMASharedLayout(128, 32, 4)
    shape, strides = [2, width // 64, n, 32], [32, 64, width, 1]
    return TensorDescriptor(words, shape, strides, [2, parts, block_n, 32], layout)


_INT8 = """
        lop3.b32 v, w, 0x007F007F, 0x43004300, 0xEA;
        lop3.b32 s, w, 0x00800080, 0x43004300, 0xEA;
        sub.rn.bf16x2 {0}, v, s;"""
_FP8 = """
        {shift} v, w, 4;
        and.b32 v, v, 0x07F007F0;
        lop3.b32 {0}, {sign}, 0x80008000, v, 0xEA;"""
_DEQUANTIZE = {
    "s8": (_INT8.format("$0"), "shr.u32 w, w, 8;" + _INT8.format("$1")),
    "e4m3": (
        "shl.b32 s, w, 8;" + _FP8.format("$0", shift="shl.b32", sign="s"),
        _FP8.format("$1", shift="shr.u32", sign="w"),
    ),
}


@gluon.constexpr_function
def _dequantize_asm(kind, word, has_zeros, is_scaled):
    """Two times two bfloat16 of the codes of one of two words: less zeros, times scales."""
    first = 6 if has_zeros else 4
    ends = []
    for i in (0, 1):
        end = f"sub.rn.bf16x2 ${i}, ${i}, ${4 + i};\n" if has_zeros else ""
        if is_scaled:
            end += f"mul.rn.bf16x2 ${i}, ${i}, ${first + i};"
        elif kind == "e4m3":
            end += f"mul.rn.bf16x2 ${i}, ${i}, e;"
        ends.append(end)
    first_code, second_code = _DEQUANTIZE[kind]
    return f"""{{
        .reg .b32 w, v, s, e;
        mov.b32 e, 0x7B807B80;
        mov.b32 w, ${2 + word};
        {first_code}
        {second_code}
        {ends[0]}
        {ends[1]}
    }}"""


@gluon.jit
def dequantize(words, zero, other_zero, scale, other_scale, WORD: gl.constexpr, KIND: gl.constexpr):
    """Words [rows, 32] → two bfloat16 [rows, 32]: columns 64 · WORD on of 128, and 32 behind.

    zero, scale and others [rows, 1]: of the two; None for 0, or 1.
    """
    asm: gl.constexpr = _dequantize_asm(KIND, WORD, zero is not None, scale is not None)
    if KIND == "e4m3" and scale is not None:
        scale = (scale.to(gl.float32) * 2.0**120).to(gl.bfloat16)
        other_scale = (other_scale.to(gl.float32) * 2.0**120).to(gl.bfloat16)
    zeros = () if zero is None else (zero, other_zero)
    scales = () if scale is None else (scale, other_scale)
    operands = (words,) + zeros + scales  # noqa: RUF005, gluon knows no other way
    registers: gl.constexpr = "=&r,=&r" + ",r" * (len(operands) + 1)  # two of words
    return gl.inline_asm_elementwise(
        asm, registers, operands, dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2
    )
