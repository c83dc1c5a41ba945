"""A process that inherits others reaps them, and leaves its own to those who wait for them."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from child_process import run_to_end

from quire.engine.processes import orphans

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
    done = run_to_end([sys.executable, "-c", PROGRAM])
    assert (done.returncode, done.stderr) == (0, "")


def test_one_that_somebody_waits_for_late_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits for a child may be slower than two looks, and quicker than the third."""
    waits: list[int] = []

    def taken(pid: int, _options: int) -> None:
        waits.append(pid)
        raise ChildProcessError

    monkeypatch.setattr(orphans, "SECONDS", 0.001)
    monkeypatch.setattr(orphans, "_first_ended", lambda: 7)
    monkeypatch.setattr(os, "waitpid", taken)

    async def run() -> None:
        job = asyncio.create_task(orphans.reap_forever())
        while len(waits) < 2 and not job.done():
            await asyncio.sleep(0.001)
        assert not job.done()
        job.cancel()

    asyncio.run(run())
