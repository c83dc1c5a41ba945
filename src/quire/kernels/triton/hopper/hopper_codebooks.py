"""Codes of a codebook (NF4, MXFP4) as bfloat16, in the registers that tensor cores take them from.

A number of e2m1 (MXFP4) has bits that bfloat16 has, too: after a product, which shifts its sign and
the rest at once, and a mask they are 2^-126 times the number, subnormal ones included. Others are
looked up: PRMT picks bytes of eight, so it takes two for each byte of 16 numbers.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def e2m1_asm(index):
    """Codes `index` of two words, two bfloat16, times 2^-126 and the scale $3."""
    word = "$1" if index < 4 else "$2"
    shift = f"shr.u32 t, {word}, 8;" if index % 4 > 1 else f"mov.b32 t, {word};"
    mask, by = ("0x00F000F0", "0x104") if index % 2 else ("0x000F000F", "0x1040")
    return f"""{{
        .reg .b32 t;
        {shift}
        and.b32 t, t, {mask};
        mul.lo.u32 t, t, {by};
        and.b32 t, t, 0x81C081C0;
        mul.rn.bf16x2 $0, t, $3;
    }}"""


@gluon.jit
def make_e2m1(words, scale, INDEX: gl.constexpr):
    """Words [rows, 32] → bfloat16 [rows, 32], columns 32 · INDEX on of a step, times 2^-126.

    scale: two equal bfloat16, int32 [rows, 1].
    """
    asm: gl.constexpr = e2m1_asm(INDEX)
    return gl.inline_asm_elementwise(
        asm, "=r,r,r,r,r", [words, scale], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.constexpr_function
def look_up_words(word, block, codebook, one, other):
    """PTX: four codes of a word as numbers in `one` and `other`, two times two of 16 bits.

    Those of columns 32 * block on of the word's four blocks, and of 32 behind. s: the codes as
    nibbles, their last three bits as PRMT takes them. k: a byte of ones for each code of 8 or more,
    by the signs of the word's bytes and of those four bits to the left. Where the last eight
    numbers are the first ones with a sign (MXFP4), k gives the sign.
    """
    tables = codebook.split()
    low, high = tables[:4], tables[4:]
    select, mask = ("0x4420", "0xAE8C") if block % 2 == 0 else ("0x4431", "0xBF9D")
    either = """
        prmt.b32 b, {}, {}, s;
        lop3.b32 {}, {}, b, k, 0xD8;"""
    signs = {int(high[i], 16) ^ int(high[i + 2], 16) for i in (0, 1)}
    if low[:2] == low[2:] and signs == {0x80808080}:
        of_low, of_high = "", "lop3.b32 c, c, 0x80808080, k, 0xF8;"
    else:
        of_low = either.format(*low[2:], "a", "a")
        of_high = either.format(*high[2:], "c", "c")
    return f"""
        shl.b32 k, {word}, 4;
        prmt.b32 k, {word}, k, {mask};
        prmt.b32 s, {word}, 0, {select};
        and.b32 s, s, 0x7777;
        prmt.b32 a, {low[0]}, {low[1]}, s;
        {of_low}
        prmt.b32 c, {high[0]}, {high[1]}, s;
        {of_high}
        prmt.b32 {one}, a, c, 0x6240;
        prmt.b32 {other}, a, c, 0x7351;"""


@gluon.constexpr_function
def _look_up_asm(block, codebook):
    """Four codes of one of two words as two times two bfloat16, times their scales."""
    return f"""{{
        .reg .b32 s, k, a, b, c;
        {look_up_words("$2" if block < 2 else "$3", block, codebook, "$0", "$1")}
        mul.rn.bf16x2 $0, $0, $4;
        mul.rn.bf16x2 $1, $1, $6;
    }}"""


@gluon.jit
def look_up(words, scale, other_scale, BLOCK: gl.constexpr, CODEBOOK: gl.constexpr):
    """Words [rows, 32] → two bfloat16 [rows, 32], columns 64 · BLOCK on and 32 behind them.

    scale, other_scale: of the two, as in `make_e2m1`.
    """
    asm: gl.constexpr = _look_up_asm(BLOCK, CODEBOOK)
    return gl.inline_asm_elementwise(
        asm, "=&r,=&r,r,r,r,r,r,r", [words, scale, other_scale],
        dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
