"""A server of our own on a free loopback port, in a process of its own, for as long as needed."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from quire.errors import EngineError, UserError

START_SECONDS = 120.0
STOP_SECONDS = 10.0


@asynccontextmanager
async def local_server(options: Sequence[str]) -> AsyncIterator[str]:
    """Run `quire serve` with these options; yields its address once it is ready.

    Raises UserError with the server's own words if it refuses its options, else EngineError.
    """
    command = [sys.executable, "-m", "quire", "serve", "--port", "0", *options]
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        try:
            url = await _wait_until_ready(process)
            if url is None:
                errors.seek(0)
                raise _failure(errors.read().decode(errors="replace"))
            yield url
        finally:
            await _stop(process)


async def _wait_until_ready(process: asyncio.subprocess.Process) -> str | None:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            async for line in process.stdout:
                if found := re.search(rb"ready at (http://\S+)", line):
                    return found[1].decode()
    except TimeoutError:
        pass
    return None


def _failure(log: str) -> Exception:
    last = log.strip().splitlines()[-1] if log.strip() else "it said nothing"
    if last.startswith("error: "):
        return UserError(last.removeprefix("error: "))
    return EngineError(f"the server did not start ({last}); run `quire serve` to see why")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End it and wait for that, even if the waiting process gets a signal meanwhile."""
    if process.returncode is None:
        process.terminate()
    end = asyncio.ensure_future(_end_of(process))
    try:
        await asyncio.shield(end)
    except asyncio.CancelledError:
        await end
        raise


async def _end_of(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
