"""Streamed completions of a running server, each read in a thread of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

# Far more than a busy machine needs: how long a failure takes to show.
PATIENCE = 120.0


class Stream(threading.Thread):
    """Reads one streamed completion: its text, and how many events have come."""

    def __init__(self, url: str, **fields: object) -> None:
        super().__init__(daemon=True)
        self._host = url.removeprefix("http://")
        self._body = json.dumps({"ignore_eos": True, "stream": True} | fields)
        self.text, self.num_events, self.is_whole = "", 0, False
        self.error: dict[str, Any] = {}
        self._leaves = False
        self.start()

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._host, timeout=PATIENCE)
        header = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", self._body, header)
        with contextlib.suppress(http.client.HTTPException, OSError):  # its server was killed
            for line in connection.getresponse():
                data = line.removeprefix(b"data: ").strip()
                if self._leaves:
                    break
                if data == b"[DONE]":
                    self.is_whole = True
                elif data:
                    chunk = json.loads(data)
                    self.error = chunk.get("error", {})
                    self.text += "" if self.error else chunk["choices"][0]["text"]
                    self.num_events += 1
        connection.close()

    def leave(self) -> None:
        """Close the connection while the answer goes on."""
        self._leaves = True
        self.join(PATIENCE)
        assert not self.is_alive()


def wait_until(holds: Callable[[], bool]) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
