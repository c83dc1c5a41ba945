"""On machines with a GPU, the CPU part uses one thread."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from twins import chosen_set

from quire.kernels.cpu import native

if os.environ.get("TRITON_INTERPRET") != "1":
    native.set_num_threads(1)  # twins are small, and a dozen processes share the cores


@pytest.fixture
def one_thread() -> None:
    """Beside Triton's interpreter, which has one."""
    native.set_num_threads(1)


@pytest.fixture(params=["avx2", "avx512"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    """The compiled kernels of each instruction set in turn, where this processor runs it."""
    yield from chosen_set(request.param)
