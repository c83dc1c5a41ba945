"""Programs that tests run to their end: one that hangs fails its test, and shows where it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

SECONDS = 300.0  # five times what the longest takes, and less than pytest-timeout's limit


def run_to_end(
    words: Sequence[Any], *, seconds: float = SECONDS, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Its result, as of `subprocess.run`; by default of text, both outputs, and no input.

    check: its exit status is 0. After so many seconds each thread's stack is written to its
    standard error, if it is Python, and it and all that it has started are killed.
    """
    given = options.pop("input", None)
    default = {"stdin": subprocess.DEVNULL if given is None else subprocess.PIPE, "text": True}
    env = {**options.pop("env", os.environ), "PYTHONFAULTHANDLER": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        words, env=env, start_new_session=True, **default | pipes | options
    ) as process:
        try:
            out, err = process.communicate(given, seconds)
        except KeyboardInterrupt:  # ends the run, and not this test alone
            _killed(process)
            raise
        except BaseException as error:  # as of pytest-timeout
            out, err = _killed(process)
            raise AssertionError(f"{words} did not end:\n{out}\n{err}") from error
    if check:
        assert process.returncode == 0, f"{words} ended with {process.returncode}:\n{out}\n{err}"
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def _killed(process: subprocess.Popen[Any]) -> tuple[Any, Any]:
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(process.pid, signal.SIGABRT)  # for faulthandler's stacks
        process.wait(5.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=10.0)
    return None, "another process group has its outputs"
