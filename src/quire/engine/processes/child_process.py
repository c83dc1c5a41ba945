"""One child process and the line to it, as its parent sees them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys

from quire.background import MODULE as BACKGROUND
from quire.engine.processes.control_channel import Control, pack, read_control


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
        cls, module: str, first: Control, *, pass_fds: tuple[int, ...] = (), gently: bool = False
    ) -> Child:
        """Run a module and send it its first message. gently: as background.py does."""
        way = (BACKGROUND, module) if gently else (module,)
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", *way),
                stdin=theirs.fileno(),
                pass_fds=pass_fds,
                # Ctrl-C is for the parent alone to handle; in a session of its own Linux would
                # hold a child's priority against nobody else's
                process_group=0,
            )
        child = cls(process, *await asyncio.open_connection(sock=ours))
        child.send(first)
        return child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: Control) -> None:
        """Tell the child; without effect if it has died."""
        self._writer.write(pack(message))

    async def receive(self) -> Control | None:
        """What it says next; None once it has died, or talks nonsense."""
        return await read_control(self._reader)

    def terminate(self) -> None:
        """Ask it to end when it has finished what it does."""
        self._signal(signal.SIGTERM)

    async def end(self) -> str:
        """End it at once if it has not ended, whatever it is doing; returns how it ended."""
        self._signal(signal.SIGKILL)
        status = await self._process.wait()
        self._writer.close()
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"

    def _signal(self, number: signal.Signals) -> None:
        """Not by the process object, which would take the exit status from who waits for it."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
