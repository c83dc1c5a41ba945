"""ResponseStore: the responses that /v1/responses keeps, for all API processes of a server.

They are in one SQLite file of the server's private folder, which goes when the server ends; without
a folder, in memory. The least recently used ones are dropped beyond a number of bytes and of
responses, but none that a living process works on. What a store cannot do is logged. A new response
that is not stored is reported by the result, as an answer is worth more than its copy; elsewhere it
is an OverloadedError, so that a locked file is not taken for a response that is gone.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quire.errors import OverloadedError
from quire.processes import is_alive

logger = logging.getLogger(__name__)

MAX_RESPONSES = 4096
_WAIT_SECONDS = 0.2  # for another API process
_SETUP = (
    # Durable against the end of a process, not of the machine. Not WAL: it maps a file, and a
    # write into a map of a full disk kills the process.
    "PRAGMA journal_mode=TRUNCATE",
    "PRAGMA synchronous=OFF",
    "CREATE TABLE IF NOT EXISTS responses "
    "(id TEXT PRIMARY KEY, tenant TEXT, used INTEGER, size INTEGER, reply BLOB, items BLOB, "
    "process INTEGER)",  # that still runs it; 0: none
    "CREATE INDEX IF NOT EXISTS by_use ON responses (used, size, process)",
    "CREATE INDEX IF NOT EXISTS running ON responses (process, id) WHERE process > 0",
)


# A number after those of all others: the clock may be set back.
_LATEST = "(SELECT COALESCE(MAX(used), 0) + 1 FROM responses)"
_INSERT = f"INSERT INTO responses VALUES (?, ?, {_LATEST}, ?, ?, ?, ?)"


class StoredResponse(NamedTuple):
    """A response as JSON: its reply, and the list of its input items, earlier turns included.

    process: the id of the one that still works on it; 0: none.
    """

    reply: bytes
    items: bytes
    process: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that it counts in a store."""
        return len(self.reply) + len(self.items)

    @property
    def is_abandoned(self) -> bool:
        """Whether its process has ended before it was complete."""
        return self.process > 0 and not is_alive(self.process)


class ResponseStore:
    """At most `max_bytes` of responses; 0: none are stored. folder: shared by the processes.

    An answer that replaces a running response may exceed `max_bytes` until the next is stored.

    max_each: bytes of one response with its conversation; None: max_bytes.
    """

    def __init__(self, folder: Path | None, max_bytes: int, max_each: int | None = None) -> None:
        self._path = ":memory:" if folder is None else str(folder / "responses.sqlite")
        self._max_bytes = max_bytes
        self.max_each = max_bytes if max_each is None else min(max_each, max_bytes)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @property
    def is_on(self) -> bool:
        """Whether responses are stored at all."""
        return self._max_bytes > 0

    def put(self, response_id: str, tenant: str, response: StoredResponse) -> bool:
        """Store a response of a tenant; returns whether it is stored.

        It is not where those that run leave no room.
        """
        if response.num_bytes > self.max_each:
            return False
        row = (response_id, tenant, response.num_bytes, *response)
        with suppress(OverloadedError), self._transaction("stored") as connection:
            connection.execute(_INSERT, row)
            if self._drop_oldest(connection, response_id):
                return True
            connection.rollback()
        return False

    def replace_running(
        self, response_id: str, tenant: str, reply: bytes, *, is_running: bool = False
    ) -> bool:
        """Replace the reply of a response; returns False if none runs any more.

        is_running: whether it goes on. Raises OverloadedError if it may still have its old reply.
        """
        with self._transaction("updated") as connection:
            found = connection.execute(
                "UPDATE responses SET reply = ?, size = ? + LENGTH(items), process = process * ? "
                "WHERE id = ? AND tenant = ? AND process > 0",
                (reply, len(reply), is_running, response_id, tenant),
            )
            self._drop_oldest(connection, response_id)
        return found.rowcount > 0

    def running_ids(self, process: int) -> set[str] | None:
        """The responses that a process works on; None where they cannot be read."""
        with suppress(OverloadedError), self._transaction("read") as connection:
            rows = connection.execute(
                "SELECT id FROM responses WHERE process = ? AND process > 0", (process,)
            )
            return {name for (name,) in rows}
        return None

    def get(self, response_id: str, tenant: str) -> StoredResponse | None:
        """A response of this tenant; None if there is none (any more).

        Raises OverloadedError if it cannot be read.
        """
        if not self.is_on:
            return None
        key = (response_id, tenant)
        with self._transaction("read") as connection:
            row = connection.execute(
                "SELECT reply, items, process FROM responses WHERE id = ? AND tenant = ?", key
            ).fetchone()
        if row is None:
            return None
        with suppress(OverloadedError), self._transaction("marked as used") as connection:
            connection.execute(
                f"UPDATE responses SET used = {_LATEST} WHERE id = ? AND tenant = ?", key
            )
        return StoredResponse(*row)

    def delete(self, response_id: str, tenant: str) -> bool:
        """Delete a response of this tenant; returns whether there was one.

        Raises OverloadedError if it may still be there.
        """
        if not self.is_on:
            return False
        with self._transaction("deleted") as connection:
            key = (response_id, tenant)
            found = connection.execute("DELETE FROM responses WHERE id = ? AND tenant = ?", key)
        return found.rowcount > 0

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _transaction(self, what: str) -> Iterator[sqlite3.Connection]:
        """One transaction at a time. what: its purpose, for the log.

        Raises OverloadedError, logged, if it fails.
        """
        with self._lock:
            try:
                with self._opened() as connection:
                    yield connection
            except sqlite3.Error as error:
                logger.warning("a response could not be %s: %s", what, error)
                text = f"the response could not be {what}; send the request again"
                raise OverloadedError(text, retry_after=1.0) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=_WAIT_SECONDS, check_same_thread=False)
            try:
                connection.create_function("is_alive", 1, is_alive)
                for statement in _SETUP:
                    connection.execute(statement)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _drop_oldest(self, connection: sqlite3.Connection, newest: str) -> bool:
        """Drop what is too much, but neither `newest` nor what runs; returns whether that did."""
        count, total = connection.execute("SELECT COUNT(*), TOTAL(size) FROM responses").fetchone()
        while count > MAX_RESPONSES or total > self._max_bytes:
            oldest = connection.execute(
                "SELECT id, size FROM responses WHERE (process = 0 OR NOT is_alive(process)) "
                "AND id != ? ORDER BY used LIMIT 1",
                (newest,),
            ).fetchone()
            if oldest is None:
                return False
            connection.execute("DELETE FROM responses WHERE id = ?", oldest[:1])
            count, total = count - 1, total - oldest[1]
        return True
