"""A child process and its control channel, seen from the parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys

from quire.background import MODULE as BACKGROUND
from quire.engine.processes.control_channel import ControlMessage, pack, read_control
from quire.engine.processes.liveness import open_files
from quire.errors import EngineError

logger = logging.getLogger(__name__)

END_SECONDS = 30.0  # of a process that was killed: one with much memory takes seconds

_ENVIRONMENT = {
    # the parent has fetched what its models need; a later start depends on no network
    "HF_HUB_OFFLINE": "1",
}


def describe(status: int) -> str:
    """A description of how a process ended. status: see `Child.end`."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


class SpawnError(EngineError):
    """The system has no process, thread, memory or file descriptor for a child."""


class Child:
    """A process of this package; `spawn` starts it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(
        cls,
        module: str,
        first: ControlMessage,
        *,
        pass_fds: tuple[int, ...] = (),
        low_priority: bool = False,
    ) -> Child:
        """Start a module in a process and send it its first message.

        low_priority: import the module in a thread of low priority (background.py). Raises
        SpawnError.
        """
        command = (BACKGROUND, module) if low_priority else (module,)
        try:
            process, ours = await _start(command, pass_fds)
        except (OSError, RuntimeError) as error:  # the second for the thread that waits for it
            text = (
                f"no process or thread can be started ({error}); free some, or raise their limits"
            )
            raise SpawnError(text) from error
        child = cls(process, *await asyncio.open_connection(sock=ours))
        child.send(first)
        return child

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    def send(self, message: ControlMessage) -> None:
        """Send a message to the child; without effect if it has died."""
        self._writer.write(pack(message))

    async def receive(self) -> ControlMessage | None:
        """The next message from the child; None once it has died or sends an invalid one."""
        return await read_control(self._reader)

    def terminate(self) -> None:
        """Ask the child to end after its current work (SIGTERM)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child; also one that is stopped."""
        self._signal(signal.SIGKILL)

    async def end(self) -> int:
        """Kill the child if it has not ended; returns its exit status, or a signal as -number.

        One that the kernel holds (in a driver, on storage that does not answer) is left to it.
        """
        self.kill()
        try:
            async with asyncio.timeout(END_SECONDS):
                status = await self._process.wait()
        except TimeoutError:
            logger.error(
                "process %d was killed %.0f s ago and has not ended: the kernel holds it; it has "
                "%s open; see whether their storage, or its device, answers",
                self.pid, END_SECONDS, open_files(self.pid),
            )  # fmt: skip
            status = -signal.SIGKILL
        self._writer.close()
        return status

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal. Process.send_signal would take the exit status from `wait`."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


async def _start(
    command: tuple[str, ...], pass_fds: tuple[int, ...]
) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Start a process, and return it with our end of its control channel."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", *command,
                stdin=theirs.fileno(),
                pass_fds=pass_fds,
                env=os.environ | _ENVIRONMENT,
                # only the parent handles Ctrl-C. Not a new session: Linux would then schedule the
                # child's low priority only against itself
                process_group=0,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
    return process, ours
