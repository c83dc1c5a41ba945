"""A temporary folder that fills up while a server runs: it costs a log line, and no request."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from child_process import run_to_end
from server_process import end_server, running_server
from streams import wait_until
from test_processes import Server, answers_well


@pytest.fixture
def small_folder() -> Iterator[Path]:
    """A file system of 256 KiB, with a shorter path than pytest's: sockets are in it."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if sys.platform != "linux" or run_to_end(mount).returncode:
        folder.rmdir()
        pytest.skip("no file system can be mounted")
    yield folder
    run_to_end(["umount", "-l", str(folder)])
    folder.rmdir()


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_full_temporary_folder_costs_a_line_and_no_request(small_folder: Path) -> None:
    arguments = ["--load-format", "null", "--api-server-count", "2"]
    env = os.environ | {"TMPDIR": str(small_folder)}
    with running_server(*arguments, env=env, stderr=subprocess.PIPE) as (process, url):
        server = Server(psutil.Process(process.pid), url)
        fill(small_folder)
        server.complete("a", max_tokens=300)
        before = server.engine, *server.workers
        time.sleep(1.6)  # metrics are written twice a second
        assert (server.engine, *server.workers) == before
        for victim in (server.engine, server.workers[0]):
            victim.kill()
            victim.wait(10)
        wait_until(lambda: len(server.children("quire.engine.processes.engine_process")) == 1)
        wait_until(lambda: len(server.workers) == 2)
        wait_until(lambda: all(answers_well(server, "/ready") for _ in range(8)))  # of both
        for _ in range(8):
            server.complete("a", max_tokens=300)
        log = end_server(process)
        assert 1 <= log.count("metrics could not be written: No space left on device") <= 3
