"""DisconnectWatch: whether a request's client has disconnected, so that its work is cancelled.

Our own protocol (http_protocol.py) notifies it, which costs nothing while no client disconnects.
With any other ASGI server, a task per request waits for the message "http.disconnect".
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.types import Receive, Scope

# Keys of a scope's state: the DisconnectWatch of our own protocol, and the task that serves it.
STATE_KEY, TASK_KEY = "disconnect_watch", "task"


class DisconnectWatch(msgspec.Struct, eq=False):
    """The connection state of one request's client. _task: works for it."""

    _is_disconnected: bool = False
    _task: asyncio.Task[Any] | None = None

    def disconnect(self) -> None:
        """Note that the client has disconnected, and cancel the work for it."""
        self._is_disconnected = True
        if self._task is not None:
            self._task.cancel()

    def outlive(self) -> None:
        """Let the work that runs go on when the client disconnects."""
        self._task = None

    async def run(
        self, work: Coroutine[None, None, None], task: asyncio.Task[Any] | None = None
    ) -> None:
        """Run `work` in the current task until it ends or the client disconnects.

        task: the current task if known; looking it up costs a system call.
        """
        if self._is_disconnected:
            work.close()
            return
        task = self._task = task or asyncio.current_task()
        assert task is not None
        try:
            await work
        except asyncio.CancelledError:
            if not self._is_disconnected:  # it is the server that stops
                raise
            task.uncancel()
        finally:
            self._task = None


def unless_disconnected(
    scope: Scope, receive: Receive, work: Coroutine[None, None, None]
) -> Coroutine[None, None, None]:
    """Run `work`, but cancel it as soon as the client disconnects. The body must have been read."""
    state = scope["state"]
    watch: DisconnectWatch | None = state.get(STATE_KEY)
    if watch is None:
        state[STATE_KEY] = watch = DisconnectWatch()
        return _run_watched(receive, watch, work)
    return watch.run(work, state.get(TASK_KEY))


def outlive_client(scope: Scope) -> None:
    """Let the work that `unless_disconnected` runs go on when the client disconnects."""
    watch: DisconnectWatch = scope["state"][STATE_KEY]
    watch.outlive()


async def _run_watched(
    receive: Receive, watch: DisconnectWatch, work: Coroutine[None, None, None]
) -> None:
    receiver = asyncio.ensure_future(_wait_for_disconnect(receive, watch))
    try:
        await watch.run(work)
    finally:
        receiver.cancel()


async def _wait_for_disconnect(receive: Receive, watch: DisconnectWatch) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watch.disconnect()
