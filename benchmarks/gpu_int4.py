"""Times a first INT4 GEMM of few rows, in plain Triton, against the bandwidth of one H200.

    python benchmarks/gpu_int4.py

Not part of the engine: it tries a storage order for weights that a kernel of the engine can take. A
word of 32 bits has the codes of eight columns that lie 32 apart, so that a thread, which holds two
neighbouring words of a tile [BLOCK_N, 32], has pairs of neighbouring columns after one PRMT and two
LOP3 for four codes, in the order in which tensor cores take their first operand from registers.
Codes 0 to 15 become 128 to 143 in bfloat16 (0x4300 | code); 136 times the sum of x is subtracted.
"""

from __future__ import annotations

import argparse
from typing import Any

import record
import torch
import triton
import triton.language as tl
from gpu_timing import time_graph
from torch import Tensor

GROUP, TILE_K, BLOCK_M = 128, 256, 16
TILES, SPLITS = ((64, 4), (128, 8)), (1, 2, 4, 8)  # rows of W with warps; parts of K
BANDWIDTH = 4.57e12  # bytes per second that one H200 reads
SHAPES = (4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)

_PAIR = """
        prmt.b32 p, $8, $9, {selector};
        lop3.b32 ${low}, p, 0x000F000F, 0x43004300, 0xEA;
        shr.u32 q, p, 4;
        lop3.b32 ${high}, q, 0x000F000F, 0x43004300, 0xEA;"""
_PAIRS = [_PAIR.format(selector=f"0x{i}{4 + i}{i}{i}", low=2 * i, high=2 * i + 1) for i in range(4)]
UNPACK = tl.constexpr("{\n.reg .b32 p, q;" + "".join(_PAIRS) + "\n}")


@triton.jit
def unpack(words):
    """Words [N, 32] → eight tensors [N, 32] of bfloat16 with the codes plus 128."""
    return tl.inline_asm_elementwise(
        UNPACK, "=r,=r,=r,=r,=r,=r,=r,=r,r,r", [words],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16,
               tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True, pack=2,
    )  # fmt: skip


@triton.jit
def _half(x_ptrs, a, b, c, d, is_read):
    """Four dots of 32 columns each; the columns are a group."""
    x = tl.load(x_ptrs, mask=is_read, other=0.0)
    y = tl.load(x_ptrs + 32, mask=is_read, other=0.0)
    z = tl.load(x_ptrs + 64, mask=is_read, other=0.0)
    v = tl.load(x_ptrs + 96, mask=is_read, other=0.0)
    out = tl.dot(
        d, tl.trans(v), tl.dot(c, tl.trans(z), tl.dot(b, tl.trans(y), tl.dot(a, tl.trans(x))))
    )
    total = x.to(tl.float32) + y.to(tl.float32) + z.to(tl.float32) + v.to(tl.float32)
    return out - 136.0 * tl.sum(total, axis=1)[None, :]


@triton.jit(do_not_specialize=["M"])
def int4_gemm_kernel(
    x_ptr, w_ptr, scale_ptr, out_ptr, partial_ptr, counter_ptr, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """x [M, K] bf16, w [N, K / 8] words, scale [K / 128, N] bf16 → out [M, N] bf16."""
    tile, part = tl.program_id(0) // SPLIT, tl.program_id(0) % SPLIT
    k_tiles = K // 256
    rows, tokens = tile * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    columns = tl.arange(0, 32)
    is_read = (tokens < M)[:, None]
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for k in tl.range(part * k_tiles // SPLIT, (part + 1) * k_tiles // SPLIT, num_stages=STAGES):
        w_ptrs = w_ptr + rows[:, None].to(tl.int64) * (K // 8) + k * 32 + columns[None, :]
        a, b, c, d, e, f, g, h = unpack(tl.load(w_ptrs, eviction_policy="evict_first"))
        x_ptrs = x_ptr + tokens[:, None] * K + k * 256 + columns[None, :]
        first = tl.load(scale_ptr + 2 * k * N + rows).to(tl.float32)
        second = tl.load(scale_ptr + (2 * k + 1) * N + rows).to(tl.float32)
        acc += _half(x_ptrs, a, b, c, d, is_read) * first[:, None]
        acc += _half(x_ptrs + 128, e, f, g, h, is_read) * second[:, None]
    complete = True
    if SPLIT > 1:
        parts = partial_ptr + tile * SPLIT * BLOCK_N * BLOCK_M
        offsets = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tokens[None, :]
        tl.store(parts + part * BLOCK_N * BLOCK_M + offsets, acc)
        tl.debug_barrier()
        complete = tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") % SPLIT == SPLIT - 1
        if complete:
            acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for i in tl.static_range(SPLIT):
                acc += tl.load(parts + i * BLOCK_N * BLOCK_M + offsets, cache_modifier=".cg")
    if complete:
        out_ptrs = out_ptr + rows[:, None] + tokens[None, :] * N
        tl.store(out_ptrs, acc.to(tl.bfloat16), mask=(tokens < M)[None, :])


def pack(codes: Tensor) -> Tensor:
    """Codes [N, K], 0 to 15 → words [N, K / 8]: nibble i of word w of a tile is column 32 i + w."""
    n, k = codes.shape
    tiles = codes.view(n, k // TILE_K, 8, 32).to(torch.int64)
    words = sum(tiles[:, :, i] << 4 * i for i in range(8))
    assert isinstance(words, Tensor)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).reshape(n, k // 8).int()


def weight(n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random codes, their words, and scales [K / 128, N]."""
    codes = torch.randint(0, 16, (n, k), device="cuda", dtype=torch.int32)
    scales = torch.rand(k // GROUP, n, device="cuda") * 0.01 + 0.002
    return codes, pack(codes), scales.bfloat16()


def measure(n: int, k: int, m: int) -> dict[str, Any]:
    """The fastest config of a shape: microseconds, share of the bandwidth, largest error."""
    codes, *first = weight(n, k)
    weights = [first] + [weight(n, k)[1:] for _ in range(max(2, int(250e6 / (n * k / 2))))]
    x, out = (
        torch.randn(m, k, device="cuda").bfloat16(),
        torch.empty(m, n, device="cuda").bfloat16(),
    )
    wide = (codes.float() - 8) * first[1].float().repeat_interleave(GROUP, 0).T
    wanted, rows = x.float() @ wide.T, []
    configs = [(*tile, split, stages) for tile in TILES for split in SPLITS for stages in (3, 5)]
    for block_n, warps, split, stages in configs:
        programs = n // block_n * split
        if not 100 <= programs <= 1200:
            continue
        partial = torch.empty(programs * block_n * BLOCK_M, device="cuda")
        counter = torch.zeros(n // block_n, device="cuda", dtype=torch.int32)

        def run(words: Tensor, scales: Tensor) -> None:
            int4_gemm_kernel[(programs,)](  # noqa: B023 - called at once
                x, words, scales, out, partial, counter, m, n, k,  # noqa: B023
                BLOCK_M, block_n, split, stages, num_warps=warps,  # noqa: B023
            )  # fmt: skip

        run(*weights[0])
        error = ((out.float() - wanted).abs().max() / wanted.abs().max()).item()
        calls = [lambda pair=pair: run(*pair) for pair in weights]  # type: ignore[misc]
        us = time_graph(calls, least_us=300)
        rows.append(
            {"us": us, "error": error, "block_n": block_n, "split": split, "stages": stages}
        )
    best = min(rows, key=lambda row: row["us"])
    num_bytes = n * k / 2 + 2 * n * k / GROUP
    return {"n": n, "k": k, "m": m, "share": num_bytes / best["us"] * 1e6 / BANDWIDTH} | best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    torch.manual_seed(0)
    results = [measure(n, k, m) for n, k in SHAPES for m in (1, 16)]
    for row in results:
        print(f"{row['n']} x {row['k']}, {row['m']} rows: {row['us']:.1f} us, {row['share']:.0%}, "
              f"error {row['error']:.1e}")  # fmt: skip
    record.save("gpu_int4", {"gpu": torch.cuda.get_device_name(), "rows": results})


if __name__ == "__main__":
    main()
