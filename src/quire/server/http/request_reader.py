"""Reads a request's headers, its query and its JSON body, up to a size limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope

from quire.errors import invalid_value
from quire.server.http.http_errors import HttpError

T = TypeVar("T", bound=msgspec.Struct)
_BY_NAME = "quire.headers"  # in a scope
STATE_KEY = "body"  # in a scope's state: the body, if our protocol received it in one piece

_USUAL_TYPE = b"application/json"
_JSON_TYPE = re.compile(r"application/([\w.+-]+\+)?json")

# A program's body is JSON whatever its type says, as for Ollama and llama.cpp: `curl -d` calls it a
# form's, and other clients give it none. A browser's has the type of JSON: with some others it asks
# no server before it sends what another site's page has written. It says that it is a browser in
# headers that the page cannot remove.
_BROWSER_HEADERS = (b"origin", b"sec-fetch-site", b"sec-fetch-mode")


def first_headers(scope: Scope) -> dict[bytes, bytes]:
    """A request's headers by name; of several with one name, the first. Cached in the scope."""
    found: dict[bytes, bytes] | None = scope.get(_BY_NAME)
    if found is None:
        found = scope[_BY_NAME] = dict(reversed(scope["headers"]))
    return found


def has_body(scope: Scope) -> bool:
    """Whether the body of a request has been received already."""
    return STATE_KEY in scope["state"]


def read_query(request: Request, kind: type[T], problems: Mapping[str, str]) -> T:
    """The query as a struct. problems: by field, what an InvalidRequestError says of its value."""
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")  # "... - at `$.limit`"
        raise invalid_value(name, problems[name]) from None


async def read_body(
    scope: Scope, receive: Receive, limit: int, hold: Callable[[int], None] = lambda _: None
) -> bytes:
    """The bytes of a JSON body of at most `limit` bytes, counted as they arrive.

    hold: called with the number of bytes received so far; may raise. Raises HttpError 413 or 415,
    or ClientDisconnect.
    """
    headers = first_headers(scope)
    _check_media_type(headers)
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
        raise _too_large(limit)
    complete: bytes | None = scope["state"].get(STATE_KEY)
    if complete is not None:
        if len(complete) > limit:
            raise _too_large(limit)
        hold(len(complete))
        return complete
    parts: list[bytes] = []  # joined once: a bytearray that grows is copied again and again
    num_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        if num_bytes > limit:
            raise _too_large(limit)
        hold(num_bytes)
        more = message.get("more_body", False)
    return b"".join(parts)


def _check_media_type(headers: Mapping[bytes, bytes]) -> None:
    if headers.get(b"content-type") == _USUAL_TYPE and b"content-encoding" not in headers:
        return
    given = headers.get(b"content-type", b"").decode("latin-1")
    is_json = _JSON_TYPE.fullmatch(given.partition(";")[0].strip().lower())
    if not is_json and any(name in headers for name in _BROWSER_HEADERS):
        text = "the body must be JSON; send it with the header Content-Type: application/json"
        raise HttpError(415, text, code="unsupported_media_type")
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.strip().lower() != "identity":
        text = "compressed bodies are not read; send it without Content-Encoding"
        raise HttpError(415, text, code="unsupported_media_type")


def _too_large(limit: int) -> HttpError:
    text = (
        f"the body is larger than {limit} bytes; send a shorter one, or start the server with a "
        "larger --max-body-bytes"
    )
    # the rest of the body is not read, so the connection cannot serve another request
    return HttpError(413, text, code="body_too_large", headers={"connection": "close"})
