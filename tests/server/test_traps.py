"""What HTTP and JSON allow clients to try, on every path: always a 4xx of the right kind."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from asgi_client import JSON, Reply, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.server.app import build_app
from quire.server.ops.openapi import entries_of
from quire.server.settings import ServerSettings

OPERATIONS = entries_of(build_app(FakeEngine(), ServerSettings()).routes)
POSTS = [operation for operation in OPERATIONS if operation.body is not None]
PATHS = sorted({operation.shown_path for operation in OPERATIONS})
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"]
DEEP = 10_000


def filled(path: str) -> str:
    """A path that exists."""
    return path.replace("{name}", "fake")


def pattern_of(path: str) -> str:
    """A regular expression for the paths that a path with names in braces stands for."""
    return re.sub(r"\{\w+\}", "[^/]+", path)


def message_of(reply: Reply) -> str:
    """The error's sentence, in whichever API's words."""
    error = reply.json()["error"]  # Ollama's is the sentence itself
    message: str = error if isinstance(error, str) else error["message"]
    return message


# ---------------------------------------------------------------------- JSON

ALL = [
    b"", b"null", b"[]", b'"a"', b"1", b"{", b"{}}", b"{} {}", b"\xef\xbb\xbf{}", b"{'a': 1}",
    "{}".encode("utf-16"), "{}".encode("utf-16-le"), "{}".encode("utf-32"), b"\x00", b"{}\x00",
    b"[" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b'{"\\ud800": 1}', b'{"model": "\xed\xa0\x80"}', b'{"model": "\xc0\x80"}', b'{"a": 01}',
    b"/* a */ {}", b'{"model": "\n"}', b'{"model": "\\x00"}', b"\x1f\x8b\x08\x00",
]  # fmt: skip
# put into a body that is well-formed otherwise
FIELDS = [
    b'"x": NaN', b'"x": -Infinity', b'"x": 1e400', b'"x": 1', b'"x": "\\ud83d"',
    b'"x": ' + b"9" * 5000, b'"model": null, "model": null', b'"model": NaN', b'"model": 1e400',
    b'"model": ' + b"[" * DEEP + b"]" * DEEP, b'"x": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b'"model": "\\ud83d"', b'"mod\\u0065l": null, "model": null', b'"__proto__": {}', b'"": 1',
]  # fmt: skip


def bodies(example: Any) -> list[bytes]:
    whole = json.dumps(example).encode()
    return [*ALL, *(b"%b, %b}" % (whole[:-1], field) for field in FIELDS), whole[:-1], whole + b"}"]


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_every_path_refuses_what_is_no_proper_json(app: Starlette, operation: Any) -> None:
    for body in bodies(operation.example):
        reply = call(app, operation.path, body)
        assert reply.status == 400, body[:80]
        assert "; " in message_of(reply) or " must be " in message_of(reply), body[:80]
        assert len(reply.body) < 1000


INTS = [b"1.0", b"1e0", b"1.5", b"-0.0", b'"1"', b"true", b"18446744073709551616", b"1e99", b"[1]"]


@pytest.mark.parametrize("number", INTS)
def test_integers_are_integers(app: Starlette, number: bytes) -> None:
    for path, body in [
        ("/v1/completions", b'{"prompt": "a", "max_tokens": %b}'),
        ("/v1/completions", b'{"prompt": "a", "stop_token_ids": [%b]}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}], "seed": %b}'),
        ("/v1/responses", b'{"input": "a", "max_output_tokens": %b}'),
        ("/v1/messages", b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": %b}'),
        ("/detokenize", b'{"tokens": [%b]}'),
    ]:
        reply = call(app, path, body % number)
        assert reply.status == 400, path
        assert "must be an integer" in message_of(reply)


def test_numbers_are_taken_in_every_spelling(app: Starlette) -> None:
    for number in (b"0", b"-0", b"-0.0", b"0e9", b"1E-400", b"1", b"1.0", b"1e0", b"0.1e1"):
        body = b'{"prompt": "a", "temperature": %b, "max_tokens": 1}' % number
        assert call(app, "/v1/completions", body).status == 200, number


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_only_browsers_have_to_call_json_what_it_is(app: Starlette, operation: Any) -> None:
    for headers in (
        {},
        {"content-type": ""},
        {"content-type": "text/json"},
        {"content-type": "application/x-ndjson"},
        {"content-type": "multipart/form-data; boundary=a"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json, text/plain"},
    ):
        page = headers | {"origin": "http://x"}
        assert call(app, operation.path, operation.example, headers=page).status == 415, headers
        reply = call(app, operation.path, operation.example, headers=headers)
        assert reply.status < 300, headers


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_compressed_bodies_are_415(app: Starlette, operation: Any) -> None:
    for name in ("gzip", "br", "identity, gzip", "x"):
        headers = JSON | {"content-encoding": name}
        reply = call(app, operation.path, operation.example, headers=headers)
        assert reply.status == 415, headers


# ---------------------------------------------------------------------- paths and methods


@pytest.mark.parametrize("path", PATHS)
def test_other_methods_get_405_with_the_allowed_ones(app: Starlette, path: str) -> None:
    known = {o.method.upper() for o in OPERATIONS if o.shown_path == path}
    known |= {"HEAD"} if "GET" in known else set()
    # /v1/responses/input_tokens is a response's path, too
    by_name = {o.method.upper() for o in OPERATIONS if re.fullmatch(pattern_of(o.shown_path), path)}
    by_name |= {"HEAD"} if "GET" in by_name else set()
    for method in METHODS:
        if method in known | by_name or path == "/page/{path}":
            continue
        reply = call(app, filled(path), method=method)
        assert reply.status == 405, method
        assert set(reply.headers["allow"].split(", ")) == known
        assert "method not allowed" in message_of(reply)


@pytest.mark.parametrize(
    "path",
    ["/v1/models/", "/v1//models", "//v1/models", "/v1/models/x/", "/V1/models", "/v1", "/v1/",
     "/v1/chat/completions/", "/health/", "/../health", "/metrics.", "/v1/completions\x00",
     "/\ud7ff", "/" + "a" * 5000],
)  # fmt: skip
def test_only_the_paths_themselves_are_served(app: Starlette, path: str) -> None:
    for method in ("GET", "POST"):
        reply = call(app, path, {} if method == "POST" else None, method=method)
        assert reply.status in (404, 405), path
        assert "location" not in reply.headers
        assert len(reply.body) < 1000
