"""Triton versions of the operations, for CUDA devices. Imported only where one is used.

Kernels are compiled without their lines of source, in a seventh less time; a profiler that is to
show lines needs TRITON_DISABLE_LINE_INFO=0.
"""

import os

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
