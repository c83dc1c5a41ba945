"""Best rates of a processor's threads: reading memory, and each kind of multiply-add.

python benchmarks/cpu_limits.py

A small program for each instruction is compiled and run: twelve sums in registers (four where they
are tiles), nothing else in the loop.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

# flag of the processor, operations of an instruction, its text for sum {0}
_WIDE = "{name} %%zmm30, %%zmm31, %%zmm{0}"
INSTRUCTIONS = {
    "avx2_gflops": ("avx2", 16, "vfmadd231ps %%ymm12, %%ymm13, %%ymm{0}"),
    "avx512_gflops": ("avx512f", 32, _WIDE.replace("{name}", "vfmadd231ps")),
    "avx512_bf16_gflops": ("avx512_bf16", 64, _WIDE.replace("{name}", "vdpbf16ps")),
    "avx512_vnni_gops": ("avx512_vnni", 128, _WIDE.replace("{name}", "vpdpbusd")),
    "amx_bf16_gflops": ("amx_bf16", 16384, "tdpbf16ps %%tmm6, %%tmm7, %%tmm{0}"),
    "amx_int8_gops": ("amx_int8", 32768, "tdpbssd %%tmm6, %%tmm7, %%tmm{0}"),
}
# bytes of a weight as it is read; int4 has a float16 scale for each 32
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5 + 2 / 32}
BEST_OF = {  # what a matmul with a weight format may use
    "float32": ("avx2_gflops", "avx512_gflops"),
    "bfloat16": ("avx2_gflops", "avx512_gflops", "avx512_bf16_gflops", "amx_bf16_gflops"),
    "int8": ("avx2_gflops", "avx512_gflops", "avx512_vnni_gops", "amx_int8_gops"),
    "int4": ("avx2_gflops", "avx512_gflops", "avx512_vnni_gops", "amx_int8_gops"),
}
ROUNDS = 2_000_000
PROGRAM = """
#include <stdio.h>
#include <sys/syscall.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>
static double seconds() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
                          return t.tv_sec + 1e-9 * t.tv_nsec; }
static void spin() {
    long left = ROUNDS;
#ifdef TILES
    struct alignas(64) { unsigned char palette = 1, rest[15] = {}; unsigned short bytes[16];
                         unsigned char rows[16]; } sizes;
    for (int i = 0; i < 16; ++i) sizes.bytes[i] = i < 8 ? 64 : 0, sizes.rows[i] = i < 8 ? 16 : 0;
    asm volatile("ldtilecfg (%0)" : : "r"(&sizes) : "memory");
#else
    asm volatile("vzeroall" : : : "memory");
#endif
    asm volatile("1: " BODY "dec %0; jnz 1b" : "+r"(left) : : "memory");
#ifdef TILES
    asm volatile("tilerelease");
#else
    asm volatile("vzeroupper");
#endif
}
int main() {
#ifdef TILES
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return 1;
#endif
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
        const double begin = seconds();
        std::vector<std::thread> all;
        for (int t = 0; t < THREADS; ++t) all.emplace_back(spin);
        for (auto& one : all) one.join();
        if (seconds() - begin < best) best = seconds() - begin;
    }
    printf("%f", best);
}
"""


def operation_rates(threads: int) -> dict[str, float]:
    """Billions of operations a second of each instruction that this processor has."""
    cpuinfo = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
    rates = {}
    for name, (flag, operations, text) in INSTRUCTIONS.items():
        if flag in cpuinfo:
            tiles = "tmm" in text
            seconds = _seconds(text, 4 if tiles else 12, tiles, threads)
            count = threads * ROUNDS * (4 if tiles else 12)
            rates[name] = round(operations * count / seconds / 1e9, 1)
    return rates


def _seconds(text: str, sums: int, tiles: bool, threads: int) -> float:
    body = "; ".join(text.format(number) for number in range(sums)) + "; "
    defines = [f"-DTHREADS={threads}", f"-DROUNDS={ROUNDS}L", f'-DBODY="{body}"']
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "peak.cpp", Path(folder) / "peak"
        source.write_text(PROGRAM)
        flags = ["-O1", "-pthread", *defines, *(["-DTILES"] if tiles else [])]
        subprocess.run(["c++", *flags, "-o", program, source], check=True)
        return float(subprocess.run([program], check=True, capture_output=True).stdout)


def read_bandwidth() -> float:
    """GB/s of reading memory with all of PyTorch's threads."""
    data, times = torch.from_numpy(np.ones(1 << 27, np.float32)), []  # in pages of 2 MB, by NumPy
    for _ in range(5):
        begin = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - begin)
    return data.nbytes / min(times) / 1e9


if __name__ == "__main__":
    print({"read_gb_per_s": read_bandwidth()} | operation_rates(torch.get_num_threads()))
