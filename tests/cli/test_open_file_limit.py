"""A server with few open files: it raises the limit itself, or says so and ends."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable

from child_process import run_to_end

from quire.cli.open_file_limit import WANTED

SERVE = [sys.executable, "-m", "quire", "serve", "--port", "0", "--load-format", "null"]


def limited(soft: int, hard: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_low_a_limit_is_refused_in_a_sentence() -> None:
    done = run_to_end(SERVE, preexec_fn=limited(24, 24))
    assert done.returncode == 2
    assert done.stderr.startswith("error: the limit of open files is 24, and a server needs 128")
    assert len(done.stderr.splitlines()) == 1


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource; from quire.cli.open_file_limit import raise_open_file_limit as run\n"
        "run(); print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4096)
    command = [sys.executable, "-c", code]
    out = run_to_end(command, preexec_fn=limited(24, hard), check=True).stdout
    assert out.split() == [str(min(WANTED, hard)), str(hard)]


def test_a_server_runs_with_the_least_limit() -> None:
    with subprocess.Popen(
        SERVE, preexec_fn=limited(128, 128), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert b"is ready at" in process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 0
