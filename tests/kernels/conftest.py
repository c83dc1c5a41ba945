"""Without a GPU, Triton's kernels run in its interpreter here; told before any is imported."""

from __future__ import annotations

import os

import torch

from quire.kernels.cpu.native import set_num_threads

if torch.cuda.is_available():
    set_num_threads(1)  # twins are small, and a dozen processes share the cores
else:
    os.environ["TRITON_INTERPRET"] = "1"
