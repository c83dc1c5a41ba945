"""Whether the client of a request has left; then whatever works for it is interrupted.

Our own protocol (http_protocol.py) tells it, which costs nothing while nobody leaves. Any other
ASGI server has to be asked, by a task for each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Scope

# In a scope's state: the DisconnectWatch of our own protocol, and the task that answers.
STATE_KEY, TASK_KEY = "departure", "task"


class DisconnectWatch:
    """Of one request's client."""

    __slots__ = ("_has_left", "_task")

    def __init__(self) -> None:
        self._has_left = False
        self._task: asyncio.Task[Any] | None = None  # what works for the client

    def tell(self) -> None:
        """The client has left."""
        self._has_left = True
        if self._task is not None:
            self._task.cancel()

    async def interrupts(
        self, work: Coroutine[None, None, None], task: asyncio.Task[Any] | None = None
    ) -> None:
        """Run `work` in the current task until it ends or the client leaves.

        task: the current one, where that is known; to ask for it costs a system call.
        """
        if self._has_left:
            work.close()
            return
        task = self._task = task or asyncio.current_task()
        assert task is not None
        try:
            await work
        except asyncio.CancelledError:
            if not self._has_left:  # it is the server that stops
                raise
            task.uncancel()
        finally:
            self._task = None


def unless_disconnected(
    scope: Scope, receive: Receive, work: Coroutine[None, None, None]
) -> Coroutine[None, None, None]:
    """Run `work`, but cancel it as soon as the client leaves. The body must have been read."""
    state = scope["state"]
    disconnect_watch: DisconnectWatch | None = state.get(STATE_KEY)
    if disconnect_watch is None:
        return _watched(receive, work)
    return disconnect_watch.interrupts(work, state.get(TASK_KEY))


async def _watched(receive: Receive, work: Coroutine[None, None, None]) -> None:
    disconnect_watch = DisconnectWatch()
    watch = asyncio.ensure_future(_watch(receive, disconnect_watch))
    try:
        await disconnect_watch.interrupts(work)
    finally:
        watch.cancel()


async def _watch(receive: Receive, disconnect_watch: DisconnectWatch) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    disconnect_watch.tell()
