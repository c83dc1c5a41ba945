"""Codes of a codebook (NF4, MXFP4) as bfloat16, in the registers that tensor cores take them from.

Numbers of e2m1 (MXFP4) have bits that bfloat16 has, too: a multiplication shifts a sign and the
rest where they belong, and they are 2^-126 times the number, subnormal ones included. Scales are
2^63 times as large for that, so they may be up to 2^64; errors are below 2^-70.

Others (NF4) are looked up. PRMT picks bytes of eight, so it takes two for each byte of 16 numbers,
and 12 instructions for four codes. With few rows of x a table in shared memory has the numbers of
both codes of a byte, the same column's in two blocks of 32, for each lane in a bank of its own:
6 instructions. Triton 3.6 cannot gather from shared memory, so the table is PTX's own, in static
memory beside Triton's.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from quire.kernels.triton.gemm.table_config import TABLE

_ROW = TABLE // 256  # bytes of the table for a byte of codes
assert TABLE % 1024 == 0  # as Triton's shared memory comes behind, and TMA wants it so aligned


@gluon.constexpr_function
def is_byte(codebook):
    """Whether a kernel's CODEBOOK is a type of eight bits."""
    return codebook in ("s8", "e4m3")


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
def look_up_asm(word, block, codebook, one, other):
    """PTX: four codes of a word as numbers in `one` and `other`, two times two of 16 bits.

    Those of columns 32 * block on of the word's four blocks, and of 32 behind. s: the codes as
    nibbles, their last three bits as PRMT takes them. k: a byte of ones for each code of 8 or more,
    by the signs of the word's bytes and of those four bits to the left. codebook: of `byte_tables`.
    """
    tables = codebook.split()
    select, mask = ("0x4420", "0xAE8C") if block % 2 == 0 else ("0x4431", "0xBF9D")
    return f"""
        shl.b32 k, {word}, 4;
        prmt.b32 k, {word}, k, {mask};
        prmt.b32 s, {word}, 0, {select};
        and.b32 s, s, 0x7777;
        prmt.b32 a, {tables[0]}, {tables[1]}, s;
        prmt.b32 b, {tables[2]}, {tables[3]}, s;
        lop3.b32 a, a, b, k, 0xD8;
        prmt.b32 c, {tables[4]}, {tables[5]}, s;
        prmt.b32 b, {tables[6]}, {tables[7]}, s;
        lop3.b32 c, c, b, k, 0xD8;
        prmt.b32 {one}, a, c, 0x6240;
        prmt.b32 {other}, a, c, 0x7351;"""


@gluon.constexpr_function
def _scaled_asm(block, codebook):
    return f"""{{
        .reg .b32 s, k, a, b, c;
        {look_up_asm("$2" if block < 2 else "$3", block, codebook, "$0", "$1")}
        mul.rn.bf16x2 $0, $0, $4;
        mul.rn.bf16x2 $1, $1, $6;
    }}"""


@gluon.jit
def look_up(words, scale, other_scale, BLOCK: gl.constexpr, CODEBOOK: gl.constexpr):
    """Words [rows, 32] → two bfloat16 [rows, 32], columns 64 · BLOCK on of a step and 32 behind.

    scale, other_scale: of the two, as in `make_e2m1`.
    """
    asm: gl.constexpr = _scaled_asm(BLOCK, CODEBOOK)
    return gl.inline_asm_elementwise(
        asm, "=&r,=&r,r,r,r,r,r,r", [words, scale, other_scale],
        dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip


@gluon.constexpr_function
def _store_asm(codebook):
    """Store the pair of a byte $1 for all lanes, in the table at $2; lanes begin at other banks."""
    stores = "".join(
        f"""add.u32 c, b, {16 * i}; and.b32 c, c, 112; add.u32 c, c, a;
        st.shared.v4.b32 [c], {{t, t, t, t}};
        """
        for i in range(8)
    )
    return f"""{{
        .reg .b32 s, k, a, b, c, t, u;
        {look_up_asm("$1", 0, codebook, "t", "u")}
        prmt.b32 t, t, u, 0x5410;
        mad.lo.u32 a, $1, {_ROW}, $2;
        mov.u32 b, %laneid;
        shl.b32 b, b, 4;
        {stores}
        mov.b32 $0, t;
    }}"""


_TABLE_ASM = gl.constexpr(f".shared .align 1024 .b8 quire_pairs[{TABLE}]; mov.u32 $0, quire_pairs;")


@gluon.jit
def store_pairs(CODEBOOK: gl.constexpr):
    """Fill the table of pairs → where this lane's are. A barrier has to follow.

    To be called once: each call would declare a table of its own, of the same name. What it returns
    is a scalar to Triton and differs by lane, so nothing but `load_pairs` may use it.
    """
    gl.static_assert(gl.num_warps() <= 8)
    table = gl.inline_asm_elementwise(
        _TABLE_ASM, "=r,r", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False, pack=1
    )
    layout: gl.constexpr = gl.BlockedLayout([8 // gl.num_warps()], [32], [gl.num_warps()], [0])
    asm: gl.constexpr = _store_asm(CODEBOOK)
    gl.inline_asm_elementwise(
        asm, "=r,r,r", [gl.arange(0, 256, layout), table], dtype=gl.int32, is_pure=False, pack=1
    )
    return gl.inline_asm_elementwise(
        "mov.u32 $0, %laneid; mad.lo.u32 $0, $0, 4, $1;", "=&r,r", [table], dtype=gl.int32,
        is_pure=True, pack=1,
    )  # fmt: skip


@gluon.constexpr_function
def pairs_asm(block):
    """Codes of two blocks of 32 columns of one of two words, two bfloat16 each.

    A dot product of a word's bytes and a row's size in one's position adds the byte's row to the
    lane's ($4).
    """
    word = "$2" if block < 2 else "$3"
    first, second = (f"{_ROW << 8 * (block % 2 + byte):#010x}" for byte in (0, 2))
    return f"""{{
        .reg .b32 a, b;
        dp4a.u32.u32 a, {word}, {first}, $4;
        dp4a.u32.u32 b, {word}, {second}, $4;
        ld.shared.b32 a, [a];
        ld.shared.b32 b, [b];
        prmt.b32 $0, a, b, 0x5410;
        prmt.b32 $1, a, b, 0x7632;
    }}"""


@gluon.jit
def load_pairs(words, pairs, BLOCK: gl.constexpr):
    """Words [rows, 32] → two bfloat16 [rows, 32], columns 64 · BLOCK on of a step and 32 behind.

    pairs: as `store_pairs` returns it. It is pure, although it loads: words are loaded behind the
    barrier that follows the stores, and nothing is stored later.
    """
    asm: gl.constexpr = pairs_asm(BLOCK)
    return gl.inline_asm_elementwise(
        asm, "=&r,=&r,r,r,r,r", [words, pairs], dtype=(gl.bfloat16, gl.bfloat16),
        is_pure=True, pack=2,
    )  # fmt: skip
