"""Random tensors are a test's own; on machines with a GPU, the CPU part uses one thread."""

from __future__ import annotations

import os
import zlib

import pytest
import torch

from quire.kernels.cpu.native import set_num_threads

if os.environ.get("TRITON_INTERPRET") != "1":
    set_num_threads(1)  # twins are small, and a dozen processes share the cores


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """The same numbers in each run, whichever tests a process ran before."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))
