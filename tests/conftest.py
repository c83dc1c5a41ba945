"""What holds for all tests: a cache of their own, and when Python's garbage collector works.

What collecting the tests has made is spared the collector's looks: all modules are imported and a
million objects are there by then, and nearly all of them stay.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile

import pytest

gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Engines leave prepared weights; workers of one run share them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="quire-tests-")
        os.environ["XDG_CACHE_HOME"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
