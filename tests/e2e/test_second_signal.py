"""A server that gets two signals to end: clients that are cut off get an error event."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import sys
import threading
import time
import urllib.request

import pytest
from server_process import end_server, running_server, start_program
from streams import PATIENCE, wait_until

NUM_STREAMS = 6
ENDLESS = ["--load-format", "null", "--max-model-len", "400000", "--num-blocks", "65536"]


class Stream(threading.Thread):
    """An answer that takes longer than anybody waits; `data` is what has come of it."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        fields = {"prompt": "a", "max_tokens": 150_000, "ignore_eos": True, "stream": True}
        header = {"Content-Type": "application/json"}
        self._request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(fields).encode(), header
        )
        self.data = b""
        self.start()

    def run(self) -> None:
        killed = contextlib.suppress(http.client.HTTPException, OSError)  # the server
        with killed, urllib.request.urlopen(self._request, timeout=PATIENCE) as response:
            while data := response.read1(65536):
                self.data += data


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_streams_that_a_second_signal_cuts_end_with_an_error(first: signal.Signals) -> None:
    with running_server("--api-server-count", "2", *ENDLESS) as (process, url):
        streams = [Stream(url) for _ in range(NUM_STREAMS)]
        wait_until(lambda: all(stream.data for stream in streams))
        process.send_signal(first)
        time.sleep(0.3)
        assert all(stream.is_alive() for stream in streams)
        process.send_signal(signal.SIGTERM)
        for stream in streams:
            stream.join(PATIENCE)
            last = stream.data.strip().rpartition(b"\n\n")[2]
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "draining"
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_a_closed_terminal_does_not_end_a_server_that_nohup_has_started() -> None:
    command = ("nohup", sys.executable, "-m", "quire", "serve", "--port", "0", *ENDLESS)
    process, url = start_program(command)
    try:
        process.send_signal(signal.SIGHUP)
        stream = Stream(url)
        wait_until(lambda: bool(stream.data))
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert stream.is_alive()
        process.send_signal(signal.SIGTERM)
        end_server(process)
    finally:
        process.kill()
        process.communicate()
