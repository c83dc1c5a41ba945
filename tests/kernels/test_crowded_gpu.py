"""Layers on a GPU that other processes use, too: the same bits each time.

A process's kernels are put aside in mid-work for another's there, which shows what a process alone
never does (see `hopper_barriers.py`).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from gpu_layers import GpuLayers, bits_of

pytestmark = pytest.mark.gpu("FP8")
SECONDS = 1.5  # for each batch
STEPS = 8  # of a graph
# queries and keys of requests: decodes of one product's rows each, and chunks behind decodes
BATCHES = [
    ([1] * 16, [500 + 61 * i for i in range(16)]),
    ([1] * 40, [100 + 37 * i for i in range(40)]),
    ([1] * 4 + [2 + i % 15 for i in range(100)], [200 + 7 * i for i in range(104)]),
]
CROWD = """
import torch
a, b = torch.randn(2, 4096, 4096, device="cuda").bfloat16()
c = torch.randn(1 << 24, device="cuda")
print("begun", flush=True)
while True:
    for _ in range(50):
        a @ b, c.sigmoid()
    torch.cuda.synchronize()
"""


@pytest.fixture
def crowd() -> Iterator[None]:
    """Two other processes that keep the GPU busy."""
    others = [
        subprocess.Popen([sys.executable, "-c", CROWD], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == b"begun\n"
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


@pytest.mark.usefixtures("crowd")
def test_each_step_gives_the_first_ones_bits() -> None:
    for queries, lens in BATCHES:
        for bits in (8, 16):
            layers = GpuLayers(queries, lens, bits)
            expected = {name: bits_of(tensor).clone() for name, tensor in layers.step().items()}
            wrong, replays = watched(layers, expected)
            differing = {name: n for name, n in zip(expected, wrong, strict=True) if n}
            assert not differing, (len(queries), bits, f"bytes of {replays * STEPS} steps")


def watched(layers: GpuLayers, expected: dict[str, torch.Tensor]) -> tuple[list[int], int]:
    """How many bytes of each result differed, and how often the graph of STEPS was run."""
    wrong = torch.zeros(len(expected), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(STEPS):
            for index, (name, tensor) in enumerate(layers.step().items()):
                wrong[index] += (bits_of(tensor) != expected[name]).sum()
    end, replays = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        graph.replay()
        torch.cuda.synchronize()
        replays += 1
    return wrong.tolist(), replays
