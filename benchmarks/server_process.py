"""`quire serve`, or another server, in a process of its own. Not a program; tests use it, too."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Process = subprocess.Popen[str]


def start_program(command: Sequence[str], **options: Any) -> tuple[Process, str]:
    """The process of a server, once it says that it is ready, and its address.

    options: those of Popen. Raises RuntimeError if it ends before.
    """
    options = {"stderr": subprocess.DEVNULL} | options
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    try:
        ready = re.search(r"ready at (http://\S+)", process.stdout.readline())
    except BaseException:  # an interrupt, or a test's limit
        process.kill()
        raise
    if ready is None:
        process.kill()
        raise RuntimeError(f"{command[-1]} did not start: {process.wait()}")
    return process, ready[1]


def start_server(*arguments: str, **options: Any) -> tuple[Process, str]:
    """`quire serve` on a free port, as `start_program`."""
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", *arguments]
    return start_program(command, **options)


@contextmanager
def running_server(*arguments: str, **options: Any) -> Iterator[tuple[Process, str]]:
    """A process and its address, as `start_server`; killed if it has not ended."""
    process, url = start_server(*arguments, **options)
    try:
        yield process, url
    finally:
        process.kill()
        process.communicate()


def end_server(process: Process) -> str:
    """End a server by SIGTERM, as it should end; returns the rest of what it logged, if piped."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, f"the server ended with status {process.returncode}"
    return log or ""
