"""ResponseStore: the responses that /v1/responses keeps, for all API processes of a server.

They are in one SQLite file of the server's private folder, which goes when the server ends; without
a folder, in memory. The least recently used ones are dropped beyond a number of bytes and of
responses. What a store cannot do is logged and reported by its result, never raised: an answer is
worth more than its copy.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

MAX_RESPONSES = 4096
_WAIT_SECONDS = 0.2  # for another API process
_SETUP = (
    # Durable against the end of a process, not of the machine. Not WAL: it maps a file, and a
    # write into a map of a full disk kills the process.
    "PRAGMA journal_mode=TRUNCATE",
    "PRAGMA synchronous=OFF",
    "CREATE TABLE IF NOT EXISTS responses "
    "(id TEXT PRIMARY KEY, tenant TEXT, used INTEGER, size INTEGER, reply BLOB, items BLOB)",
    "CREATE INDEX IF NOT EXISTS by_use ON responses (used, size)",
)


class StoredResponse(NamedTuple):
    """A response as JSON: its reply, and the list of its input items, earlier turns included."""

    reply: bytes
    items: bytes


class ResponseStore:
    """At most `max_bytes` of responses; 0: none are stored. folder: shared by the processes."""

    def __init__(self, folder: Path | None, max_bytes: int) -> None:
        self._path = ":memory:" if folder is None else str(folder / "responses.sqlite")
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @property
    def is_on(self) -> bool:
        """Whether responses are stored at all."""
        return self._max_bytes > 0

    def put(self, response_id: str, tenant: str, response: StoredResponse) -> bool:
        """Store a response of a tenant; returns whether it is stored."""
        size = len(response.reply) + len(response.items)
        if size > self._max_bytes:
            return False
        row = (response_id, tenant, time.time_ns(), size, *response)
        with self._lock:
            try:
                with self._opened() as connection:  # a transaction
                    connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)", row)
                    self._drop_oldest(connection)
            except sqlite3.Error as error:
                return _failed("stored", error)
        return True

    def get(self, response_id: str, tenant: str) -> StoredResponse | None:
        """A response of this tenant; None if there is none (any more)."""
        if not self.is_on:
            return None
        key = (response_id, tenant)
        with self._lock:
            try:
                with self._opened() as connection:
                    row = connection.execute(
                        "SELECT reply, items FROM responses WHERE id = ? AND tenant = ?", key
                    ).fetchone()
                    now = time.time_ns()
                    connection.execute("UPDATE responses SET used = ? WHERE id = ?", (now, key[0]))
            except sqlite3.Error as error:
                _failed("read", error)
                return None
        return None if row is None else StoredResponse(*row)

    def delete(self, response_id: str, tenant: str) -> bool:
        """Delete a response of this tenant; returns whether there was one."""
        if not self.is_on:
            return False
        with self._lock:
            try:
                with self._opened() as connection:
                    key = (response_id, tenant)
                    found = connection.execute(
                        "DELETE FROM responses WHERE id = ? AND tenant = ?", key
                    )
            except sqlite3.Error as error:
                return _failed("deleted", error)
        return found.rowcount > 0

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self._path, timeout=_WAIT_SECONDS, check_same_thread=False)
            try:
                for statement in _SETUP:
                    connection.execute(statement)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _drop_oldest(self, connection: sqlite3.Connection) -> None:
        count, total = connection.execute("SELECT COUNT(*), TOTAL(size) FROM responses").fetchone()
        while count > MAX_RESPONSES or total > self._max_bytes:
            response_id, size = connection.execute(
                "SELECT id, size FROM responses ORDER BY used LIMIT 1"
            ).fetchone()
            connection.execute("DELETE FROM responses WHERE id = ?", (response_id,))
            count, total = count - 1, total - size


def _failed(what: str, error: sqlite3.Error) -> bool:
    logger.warning("a response could not be %s: %s", what, error)
    return False
