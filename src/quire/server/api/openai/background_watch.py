"""BackgroundWatch: tells the work on background responses when they were cancelled or deleted.

Any API process may end a response, by a change in the ResponseStore. There is one look at the store
for all responses of this process, however many run, and none while none runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from quire.server.api.openai.response_store import ResponseStore

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25  # until a cancelled response stops


class BackgroundWatch:
    """Watches the responses that this process works on."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._waiting: dict[str, asyncio.Event] = {}  # by the response's id
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self, response_id: str) -> Iterator[asyncio.Event]:
        """An event that is set once the response was cancelled or deleted."""
        event = self._waiting[response_id] = asyncio.Event()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look())
        try:
            yield event
        finally:
            del self._waiting[response_id]
            if not self._waiting:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._look_once()
            except Exception:  # no response could be cancelled any more
                logger.exception("background responses could not be looked at")

    async def _look_once(self) -> None:
        asked = list(self._waiting.items())  # those stored before the look
        running = await asyncio.to_thread(self._store.running_ids, os.getpid())
        for response_id, event in asked:
            if running is not None and response_id not in running:
                event.set()
