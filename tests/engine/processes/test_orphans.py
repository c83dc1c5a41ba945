"""A process that inherits others reaps them, and leaves its own to those who wait for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Inherits a process that has ended as the first process of a container does. The status of its own
# child is what it was.
PROGRAM = """
import asyncio, ctypes, os, sys
from quire.engine.processes import orphans

orphans.SECONDS = 0.05
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0

async def main():
    job = asyncio.create_task(orphans.reap_forever())
    parent = await asyncio.create_subprocess_exec(
        "sh", "-c", "sh -c 'exit 7' & echo $!; exec sleep 0.5", stdout=asyncio.subprocess.PIPE
    )
    orphan = int(await parent.stdout.readline())
    parent.kill()
    assert await parent.wait() == -9
    while os.path.exists(f"/proc/{orphan}"):
        await asyncio.sleep(0.01)
    own = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    assert await own.wait() == 3
    await asyncio.sleep(0.2)
    assert not job.done()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans away so")
def test_orphans_are_reaped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
