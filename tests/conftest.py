"""Python's garbage collector: what collecting the tests has made is spared its looks.

All modules are imported and a million objects are there by then, and nearly all of them stay.
"""

from __future__ import annotations

import gc

gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
