"""Threads of low priority, which give way to those that make or send tokens.

A thread that has lowered its priority cannot raise it again without privilege. So what gives way
only at first, such as a process that imports while others serve, does that in a thread that ends:
`python -m quire.background MODULE` imports so, and then runs the module's `main`.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

MODULE = "quire.background"
# A tenth of what an equal would get where all cores are busy: it goes on, whatever others do.
NICENESS = 10


def lower_priority() -> None:
    """Lower the priority of the calling thread; Linux only."""
    if sys.platform == "linux":
        os.nice(NICENESS)  # of the thread, whatever POSIX says


def main() -> None:
    """Import the module that the command line names, and run it."""
    name = sys.argv[1]
    with ThreadPoolExecutor(1, initializer=lower_priority) as beside:
        module = beside.submit(import_module, name).result()
    module.main()


if __name__ == "__main__":
    main()
