"""`quire serve` in a process of its own, for tests that need the whole server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Server = subprocess.Popen[str]


def start_server(*arguments: str, **options: Any) -> tuple[Server, str]:
    """The process, once it is ready, and its address. options: those of Popen."""
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", *arguments]
    options = {"stderr": subprocess.DEVNULL} | options
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    ready = re.search(r"ready at (http://\S+)", process.stdout.readline())
    assert ready is not None, process.wait(30)
    return process, ready[1]


@contextmanager
def running_server(*arguments: str, **options: Any) -> Iterator[tuple[Server, str]]:
    """A process and its address, as `start_server`; killed if it has not ended."""
    process, url = start_server(*arguments, **options)
    try:
        yield process, url
    finally:
        process.kill()
        process.communicate()


def end_server(process: Server) -> str:
    """End a server by SIGTERM, as it should end; returns the rest of what it logged, if piped."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    return log or ""
