"""Engines write prepared weights in a thread; a test that looks at the file, or the log, waits."""

from __future__ import annotations

import threading


def wait_for_prepared_files() -> None:
    for thread in threading.enumerate():
        if thread.name == "quire-prepared":
            thread.join()
