"""Random tensors are a test's own; on machines with a GPU, the CPU part uses one thread."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import pytest
import torch
from twins import chosen_set

from quire.kernels.cpu import native

if os.environ.get("TRITON_INTERPRET") != "1":
    native.set_num_threads(1)  # twins are small, and a dozen processes share the cores


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """The same numbers in each run, whichever tests a process ran before."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def one_thread() -> None:
    """Beside Triton's interpreter, which has one."""
    native.set_num_threads(1)


@pytest.fixture(params=["avx2", "avx512"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    """The compiled kernels of each instruction set in turn, where this processor runs it."""
    yield from chosen_set(request.param)
