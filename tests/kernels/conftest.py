"""On machines with a GPU, the CPU part of these tests uses one thread."""

from __future__ import annotations

import os

from quire.kernels.cpu.native import set_num_threads

if os.environ.get("TRITON_INTERPRET") != "1":
    set_num_threads(1)  # twins are small, and a dozen processes share the cores
