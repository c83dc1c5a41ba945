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
from test_processes import Server, wait_until

SERVE = [sys.executable, "-m", "quire", "serve", "--port", "0", "--load-format", "null"]


@pytest.fixture
def small_folder() -> Iterator[Path]:
    """A file system of 256 KiB, with a shorter path than pytest's: sockets are in it."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if (
        sys.platform != "linux"
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        folder.rmdir()
        pytest.skip("no file system can be mounted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)
    folder.rmdir()


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def test_a_full_temporary_folder_costs_a_line_and_no_request(small_folder: Path) -> None:
    process = subprocess.Popen(
        [*SERVE, "--api-server-count", "2"],
        env=os.environ | {"TMPDIR": str(small_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split(" ready at ")[1].split()[0]
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
        time.sleep(2.0)  # until both accept requests again
        for _ in range(8):
            server.complete("a", max_tokens=300)
        process.terminate()
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0
        assert 1 <= log.count("metrics could not be written: No space left on device") <= 3
    finally:
        process.kill()
        process.communicate()
