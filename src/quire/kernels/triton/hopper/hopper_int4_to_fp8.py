"""Words of four-bit codes as e4m3: what the unpacking warps of `hopper_int4_rows` do.

A thread has a row of W, or half of one. Integers become float16, are scaled and rounded two at a
time, in 10 instructions for four codes. The numbers of a codebook are scaled
and rounded once for each group, into a table in registers, and codes are looked up in it: four
codes take 7 instructions, MXFP4's, which have signs, 6; without tables they would take 16 and 13.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def unpack_block(
    words, groups, first, by_row, GROUP: gl.constexpr, CODEBOOK: gl.constexpr, B: gl.constexpr
):  # fmt: skip
    """Block B of a step's four blocks of 64 columns: e4m3 [rows, 64].

    words [rows, 32]; groups: scales, and zeros if there are such, in shared memory, a row for each
    group, from `first` on the step's; by_row [rows]: what scales are multiplied by.
    """
    in_rows: gl.constexpr = by_row.type.layout
    group, other = first + 64 * B // GROUP, first + (64 * B + 32) // GROUP
    scale = _scale_pair(groups[0].index(group).load(in_rows), by_row, GROUP)
    other_scale = scale
    if GROUP <= 32:
        other_scale = _scale_pair(groups[0].index(other).load(in_rows), by_row, GROUP)
    if CODEBOOK is None:
        zero = 0x64086408
        if len(groups) > 1:
            zero = _zero_pair(groups[1].index(group).load(in_rows))
        other_zero = zero
        if len(groups) > 1 and GROUP == 32:
            other_zero = _zero_pair(groups[1].index(other).load(in_rows))
        one = _unpack(words, scale, zero, 2 * B)
        other = _unpack(words, other_scale, other_zero, 2 * B + 1)
    else:
        gl.static_assert(GROUP > 32 or _has_signs(CODEBOOK))  # one table of 16 for both
        tables = _tables(scale, other_scale, CODEBOOK)
        if GROUP == 16:  # a word has codes of one of the two groups of each 32 columns
            second = _scale_pair(groups[0].index(group + 1).load(in_rows), by_row, GROUP)
            fourth = _scale_pair(groups[0].index(other + 1).load(in_rows), by_row, GROUP)
            tables = _halves(words, tables, _tables(second, fourth, CODEBOOK))
        one, other = _look_up(words, tables, CODEBOOK, B)
    return gl.join(one, other).permute((0, 2, 1)).reshape([words.shape[0], 64])


@gluon.jit
def _scale_pair(scale, by_row, GROUP: gl.constexpr):
    """Scales of rows, divided, as two equal float16 each, int32 [rows, 1].

    Bytes are e4m3 of groups of 16, or exponents: 0 is 2^-127, 255 no number.
    """
    if GROUP == 16:
        scale = scale.to(gl.float8e4nv, bitcast=True)
    elif scale.dtype == gl.uint8:
        bits = scale.to(gl.int32)
        least = gl.where(bits == 0, 0x400000, bits << 23)
        scale = gl.where(bits == 255, 0x7FC00000, least).to(gl.float32, bitcast=True)
    pair = gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $1, $1;", "=r,r", [scale.to(gl.float32) * by_row], dtype=gl.int32,
        is_pure=True, pack=1,
    )  # fmt: skip
    return pair[:, None]


@gluon.jit
def _zero_pair(zero):
    """Zero points of rows, bytes, as two equal float16 each: 1024 + zero."""
    return (zero.to(gl.int32) * 0x10001 | 0x64006400)[:, None]


@gluon.jit
def _unpack(words, scale, zero, INDEX: gl.constexpr):
    """Words [rows, 32] → e4m3 [rows, 32], columns 32 · INDEX on of a step, times their scales."""
    asm: gl.constexpr = _unpack_asm(INDEX)
    return gl.inline_asm_elementwise(
        asm, "=r,r,r,r,r,r,r,r,r,r,r,r,r", [words, scale, zero], dtype=gl.float8e4nv,
        is_pure=True, pack=4,
    )  # fmt: skip


@gluon.constexpr_function
def _unpack_asm(index):
    """Codes `index` of two pairs of words as four e4m3: (code - zero) · scale, by float16.

    0x6400 | code is 1024 + code in float16, as zeros are.
    """
    words, shift = ("$1", "$3") if index < 4 else ("$2", "$4"), 4 * (index % 4)
    pairs = "".join(
        f"""shr.u32 t, {word}, {shift};
        lop3.b32 t, t, 0x000F000F, 0x64006400, 0xEA;
        sub.rn.f16x2 t, t, $9;
        mul.rn.f16x2 t, t, $5;
        cvt.rn.satfinite.e4m3x2.f16x2 {half}, t;
        """
        for word, half in zip(words, ("a", "b"), strict=True)
    )
    return f"{{ .reg .b32 t; .reg .b16 a, b; {pairs} mov.b32 $0, {{a, b}}; }}"


@gluon.jit
def _tables(scale, other_scale, CODEBOOK: gl.constexpr):
    """The tables of a block of 32 columns and of the next one, four words [rows, 1] in all."""
    a, b = _table(scale, CODEBOOK, 0)
    if _has_signs(CODEBOOK):  # the other block's group may have another scale
        c, d = _table(other_scale, CODEBOOK, 0)
    else:
        c, d = _table(scale, CODEBOOK, 8)
    return a, b, c, d


@gluon.jit
def _halves(words, tables, latter):
    """Tables [rows, 32]: those of the former half of the words, then those of the latter."""
    is_former = gl.arange(0, 32, gl.SliceLayout(0, words.type.layout))[None, :] < 16
    return (
        gl.where(is_former, tables[0], latter[0]), gl.where(is_former, tables[1], latter[1]),
        gl.where(is_former, tables[2], latter[2]), gl.where(is_former, tables[3], latter[3]),
    )  # fmt: skip


@gluon.jit
def _look_up(words, tables, CODEBOOK: gl.constexpr, B: gl.constexpr):
    """Words [rows, 32] → two e4m3 [rows, 32], columns 64 · B on of a step and 32 behind, scaled."""
    a, b, c, d = tables
    asm: gl.constexpr = _signed_asm(B) if _has_signs(CODEBOOK) else _look_up_asm(B)
    return gl.inline_asm_elementwise(
        asm, "=&r,=&r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r", [words, a, b, c, d],
        dtype=(gl.float8e4nv, gl.float8e4nv), is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def _table(scale, CODEBOOK: gl.constexpr, FIRST: gl.constexpr):
    """Eight numbers of the codebook from FIRST on, times scale, as e4m3, four in each of two words.

    scale: two equal float16, int32 [rows, 1].
    """
    asm: gl.constexpr = _table_asm(CODEBOOK, FIRST)
    return gl.inline_asm_elementwise(
        asm, "=&r,=&r,r", [scale], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )


@gluon.constexpr_function
def _numbers(codebook):
    """The bits of a codebook's 16 numbers in float16, from `byte_tables`."""
    words = [int(word, 16) for word in codebook.split()]  # of the low bytes, then of the high ones
    low, high = ([word >> shift & 255 for word in half for shift in (0, 8, 16, 24)]
                 for half in (words[:4], words[4:]))  # fmt: skip
    return [a | b << 8 for a, b in zip(low, high, strict=True)]


@gluon.constexpr_function
def _has_signs(codebook):
    """Whether the last eight numbers are the first ones with a sign."""
    numbers = _numbers(codebook)
    return all(numbers[i + 8] == numbers[i] | 0x8000 for i in range(8))


@gluon.constexpr_function
def _table_asm(codebook, first):
    numbers, lines = _numbers(codebook)[first : first + 8], []
    for i in range(0, 8, 2):
        lines += [f"mov.b32 t, {numbers[i] | numbers[i + 1] << 16:#010x}; mul.rn.f16x2 t, t, $2;",
                  f"cvt.rn.satfinite.e4m3x2.f16x2 {'ab'[i // 2 % 2]}, t;"]  # fmt: skip
        if i % 4 == 2:
            lines.append(f"mov.b32 ${i // 4}, {{a, b}};")
    return f"{{ .reg .b32 t; .reg .b16 a, b; {' '.join(lines)} }}"


@gluon.constexpr_function
def _codes_asm(block):
    """PTX: codes of four columns, of a block of 32 and the next one alternately, in registers.

    s: all eight. m and n: the last three bits, of two columns each, as PRMT takes them. l: s, so
    that its bytes' first bits are those of the first block's codes; those of s are the second's.
    """
    first, second = ("$2", "$4") if block < 2 else ("$3", "$5")
    return f"""
        .reg .b32 s, l, m, n, k, a, b, c, d;
        prmt.b32 s, {first}, {second}, {"0x6420" if block % 2 == 0 else "0x7531"};
        and.b32 m, s, 0x77777777;
        shr.u32 n, m, 16;
        shl.b32 l, s, 4;"""


@gluon.constexpr_function
def _look_up_asm(block):
    """Two times four e4m3 of one table of 16 numbers. k: bytes of ones for codes of 8 or more."""
    return f"""{{ {_codes_asm(block)}
        prmt.b32 a, $6, $10, m;
        prmt.b32 b, $14, $18, m;
        prmt.b32 k, s, l, 0x9D8C;
        lop3.b32 a, a, b, k, 0xD8;
        prmt.b32 c, $6, $10, n;
        prmt.b32 d, $14, $18, n;
        prmt.b32 k, s, l, 0xBFAE;
        lop3.b32 c, c, d, k, 0xD8;
        prmt.b32 $0, a, c, 0x6420;
        prmt.b32 $1, a, c, 0x7531;
    }}"""


@gluon.constexpr_function
def _signed_asm(block):
    """Two times four e4m3 of a table of 8 numbers each, with the codes' signs."""
    return f"""{{ {_codes_asm(block)}
        prmt.b32 a, $6, $10, m;
        prmt.b32 b, $6, $10, n;
        prmt.b32 c, $14, $18, m;
        prmt.b32 d, $14, $18, n;
        prmt.b32 a, a, b, 0x6420;
        prmt.b32 c, c, d, 0x7531;
        lop3.b32 $0, a, l, 0x80808080, 0xF8;
        lop3.b32 $1, c, s, 0x80808080, 0xF8;
    }}"""
