"""The device under test: a GPU if there is one; elsewhere kernels are interpreted on the CPU."""

from __future__ import annotations

import pytest
import torch
from gpu_marks import capability_here

ON_GPU = capability_here() != (0, 0)
HOPPER = capability_here() == (9, 0)
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
DTYPE = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter has no bfloat16 products
# of files that a run on a GPU chooses, and that run on the CPU, too
ON_EITHER = [pytest.mark.gpu] * ON_GPU
