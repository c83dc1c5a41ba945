"""Words of four-bit codes as e4m3, in the registers from which tensor cores take an operand.

Numbers are made in float16, times the scale of their group, and rounded two at a time. Integers
take 10 instructions for four codes, MXFP4 13, NF4 16: no conversion is slower than others.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quire.kernels.triton.hopper.hopper_word_codes import look_up_words


@gluon.jit
def unpack_block(
    words, zeros, scales, step, GROUP: gl.constexpr, CODEBOOK: gl.constexpr, B: gl.constexpr
):  # fmt: skip
    """Block B of a step's four blocks of 64 columns: e4m3 [rows, 64], from registers alone."""
    layout: gl.constexpr = words.type.layout
    if CODEBOOK is None:
        one = _unpack(words, zeros, scales, step, GROUP, 2 * B)
        other = _unpack(words, zeros, scales, step, GROUP, 2 * B + 1)
    else:
        one, other = _look_up(words, scales, step, GROUP, CODEBOOK, B)
    halves = gl.join(one, other)
    return gl.convert_layout(halves.permute((0, 2, 1)).reshape([words.shape[0], 64]), layout)


@gluon.jit
def _unpack(words, zeros, scales, step, GROUP: gl.constexpr, INDEX: gl.constexpr):
    """Words [rows, 32] → e4m3 [rows, 32], columns 32 · INDEX on of a step, times their scales."""
    in_rows: gl.constexpr = gl.SliceLayout(1, words.type.layout)
    group = step * (256 // GROUP) + 32 * INDEX // GROUP
    scale = scales.index(group).load(in_rows)[:, None]
    asm: gl.constexpr = _unpack_asm(INDEX, zeros is not None)
    if zeros is None:
        return gl.inline_asm_elementwise(
            asm, "=r,r,r,r,r,r,r", [words, scale], dtype=gl.float8e4nv, is_pure=True, pack=4
        )
    else:
        zero = zeros.index(group).load(in_rows)[:, None]
        return gl.inline_asm_elementwise(
            asm, "=r,r,r,r,r,r,r,r,r", [words, scale, zero], dtype=gl.float8e4nv, is_pure=True,
            pack=4,
        )  # fmt: skip


@gluon.jit
def _look_up(
    words, scales, step, GROUP: gl.constexpr, CODEBOOK: gl.constexpr, B: gl.constexpr
):  # fmt: skip
    """Words [rows, 32] → two e4m3 [rows, 32], columns 64 · B on of a step and 32 behind, scaled."""
    in_rows: gl.constexpr = gl.SliceLayout(1, words.type.layout)
    group = step * (256 // GROUP)
    scale = scales.index(group + 64 * B // GROUP).load(in_rows)[:, None]
    other_scale = scales.index(group + (64 * B + 32) // GROUP).load(in_rows)[:, None]
    asm: gl.constexpr = _look_up_asm(B, CODEBOOK)
    return gl.inline_asm_elementwise(
        asm, "=&r,=&r,r,r,r,r,r,r,r,r", [words, scale, other_scale],
        dtype=(gl.float8e4nv, gl.float8e4nv), is_pure=True, pack=4,
    )  # fmt: skip


@gluon.constexpr_function
def _look_up_asm(block, codebook):
    """Codes of two pairs of words as two times four e4m3: numbers of the codebook times scales."""
    first, second = ("$2", "$4") if block < 2 else ("$3", "$5")
    return f"""{{
        .reg .b32 s, k, a, b, c, t, u, v, w; .reg .b16 d, e;
        {look_up_words(first, block, codebook, "t", "u")}
        {look_up_words(second, block, codebook, "v", "w")}
        mul.rn.f16x2 t, t, $6; mul.rn.f16x2 v, v, $6;
        mul.rn.f16x2 u, u, $8; mul.rn.f16x2 w, w, $8;
        cvt.rn.satfinite.e4m3x2.f16x2 d, t; cvt.rn.satfinite.e4m3x2.f16x2 e, v;
        mov.b32 $0, {{d, e}};
        cvt.rn.satfinite.e4m3x2.f16x2 d, u; cvt.rn.satfinite.e4m3x2.f16x2 e, w;
        mov.b32 $1, {{d, e}};
    }}"""


@gluon.constexpr_function
def _unpack_asm(index, has_zeros):
    """Codes `index` of two pairs of words as four e4m3: (code - zero) · scale, by float16.

    0x6400 | code is 1024 + code in float16; so are zeros, and 0x6408 stands for 8.
    """
    words, shift = ("$1", "$3") if index < 4 else ("$2", "$4"), 4 * (index % 4)
    zero = "$7" if has_zeros else "z"
    pairs = "".join(
        f"""shr.u32 t, {word}, {shift};
        lop3.b32 t, t, 0x000F000F, 0x64006400, 0xEA;
        sub.rn.f16x2 t, t, {zero};
        mul.rn.f16x2 t, t, $5;
        cvt.rn.satfinite.e4m3x2.f16x2 {half}, t;
        """
        for word, half in zip(words, ("a", "b"), strict=True)
    )
    registers = ".reg .b32 t, z; .reg .b16 a, b; mov.b32 z, 0x64086408;"
    return f"{{ {registers} {pairs} mov.b32 $0, {{a, b}}; }}"
