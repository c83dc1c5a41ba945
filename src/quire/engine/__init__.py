"""The overlapped loop and everything that knows time, threads and processes."""

import os

# Read once, when torch loads its OpenMP. Its idle threads otherwise spin, and where others want the
# cores too (an HTTP server, its clients) they stop each other: ten times slower on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
