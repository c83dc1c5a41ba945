"""The private parts of uvicorn that the HTTP protocol here builds on."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from pathlib import Path

import uvicorn
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

ROOT = Path(__file__).parents[3]


def attributes(kind: type) -> set[str]:
    """Methods, and what the methods assign to self."""
    return {*vars(kind), *re.findall(r"self\.(\w+)(?=[,:\s][^=\n]*=[^=])", inspect.getsource(kind))}


def test_the_installed_version_is_within_the_cap() -> None:
    low, high = re.findall(r"uvicorn\[standard\]>=([\d.]+),<([\d.]+)", _pyproject())[0]
    parts = [tuple(map(int, text.split(".")[:2])) for text in (low, version("uvicorn"), high)]
    assert parts[0] <= parts[1] < parts[2], "test http_protocol.py with it and raise the cap"


def test_the_protocol_has_what_ours_overrides_and_reads() -> None:
    expected = {
        *("connection_made", "connection_lost", "data_received", "timeout_keep_alive_handler"),
        *("on_message_begin", "on_header", "on_headers_complete", "on_body"),
        *("on_message_complete", "on_response_complete", "pause_writing", "resume_writing"),
        *("_start_asgi_task", "_unset_keepalive_if_required"),
        *("loop", "transport", "flow", "parser", "pipeline", "cycle", "scope", "headers", "url"),
        *("expect_100_continue", "timeout_keep_alive", "timeout_keep_alive_task"),
    }
    assert expected - attributes(HttpToolsProtocol) == set()


def test_a_cycle_has_what_whole_responses_need() -> None:
    expected = {
        *("scope", "flow", "transport", "keep_alive", "default_headers", "message_event"),
        *("body", "disconnected", "response_started", "response_complete", "on_response"),
        *("waiting_for_100_continue", "send"),
    }
    assert expected - attributes(RequestResponseCycle) == set()
    assert httptools_impl.STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"


def test_the_server_has_what_ours_overrides_and_reads() -> None:
    expected = {"startup", "shutdown", "handle_exit", "capture_signals", "serve"}
    expected |= {"should_exit", "started", "_captured_signals"}
    assert expected - attributes(uvicorn.Server) == set()


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()
