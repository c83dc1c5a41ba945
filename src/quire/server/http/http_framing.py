"""FramedProtocol: uvicorn's HTTP protocol, with limits on the size and form of requests.

Owns which part of a request is being received, and what is refused while it is parsed. How long a
client may take, and what happens after a refusal, is in http_protocol.py.
"""

from __future__ import annotations

import enum
import re
from typing import Any, NoReturn

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quire.server.http.http_errors import HttpError
from quire.server.http.request_reader import STATE_KEY as BODY

_FRAMING_HEADERS = frozenset({b"host", b"expect", b"transfer-encoding"})
_AUTHORITY = re.compile(rb"[^/?#]+://([^/?#]*)")  # of an absolute target

_LONGEST_TARGET = (1 << 16) - 1  # bytes that httptools can parse

_HEADERS_TOO_LARGE = "the headers are too long or too many; send fewer and shorter ones"
_TOO_MANY_PIPELINED = (
    "too many requests wait for the answers to earlier ones; read those before you send more"
)
_NO_TUNNELS = (
    "the method CONNECT asks for a tunnel, which only a proxy opens; send the request itself"
)
_UNKNOWN_CODING = (
    "the header Transfer-Encoding has a coding other than chunked; send the body plain"
)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection, in seconds and bytes.

    num_pipelined: requests that may wait for the answers to earlier ones. A body may take
    body_seconds, and one second more for each body_bytes_per_second received. stall_seconds: how
    long a client may leave its response unread. linger: what may still come of a request that is
    refused before its end.
    """

    header_seconds: float = 10.0
    header_bytes: int = 64 << 10
    num_headers: int = 128
    num_pipelined: int = 1024  # a piece of 256 KiB may hold ten thousand, some 3 KB each
    body_seconds: float = 30.0
    body_bytes_per_second: int = 16 << 10
    stall_seconds: float = 30.0
    linger_seconds: float = 5.0
    linger_bytes: int = 64 << 20


class Phase(enum.Enum):
    """The part of a request that is being received."""

    NONE = enum.auto()
    HEADERS = enum.auto()
    BODY = enum.auto()


class FramedProtocol(HttpToolsProtocol):
    """Parses the requests of one connection, within limits."""

    def __init__(self, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._phase = Phase.NONE
        self._num_phases = 0  # that have begun; one piece may end in the next request's same phase
        self._num_hosts = 0
        self._num_bytes = 0  # of this phase; of a body, only those of its framing
        self._max_bytes = limits.header_bytes  # the framing of a body's chunks grows with them
        self._num_body_bytes = 0
        self._refusal: HttpError | None = None  # of the request that is being parsed
        self._ignores_upgrade = False  # the parser stops after these headers; see _feed

    def _parse(self, data: bytes) -> None:
        """Parse received bytes. Raises HttpError for what breaks HTTP or a limit."""
        before = self._num_phases
        try:
            self._feed(data)
        except httptools.HttpParserError:
            text = "the request is not valid HTTP/1.1; send a well-formed request"
            raise self._refusal or HttpError(400, text, code="bad_request") from None
        if self._num_phases == before and self._phase is not Phase.NONE:
            self._num_bytes += len(data)
            if self._num_bytes > self._max_bytes:
                self._refuse_parsing(_HEADERS_TOO_LARGE, 431, "headers_too_large")

    def _feed(self, data: bytes) -> None:
        """Feed the parser. It stops after headers that ask for an upgrade to another protocol.

        None is offered, so such a request is served as HTTP: its head is parsed again without the
        header. Raises HttpParserError.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stop:
                data = self._head_without_upgrade() + data[stop.args[0] :]
                self._ignores_upgrade = False
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _begin(self, phase: Phase) -> None:
        self._phase = phase
        self._num_phases += 1

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        super().on_message_begin()
        self._begin(Phase.HEADERS)
        self._num_hosts = self._num_bytes = self._num_body_bytes = 0
        self._max_bytes = self._limits.header_bytes

    def on_url(self, url: bytes) -> None:
        """A part of the target has come."""
        super().on_url(url)
        if len(self.url) > min(self._limits.header_bytes, _LONGEST_TARGET):
            text = "the URL is too long; send what it holds in the body"
            self._refuse_parsing(text, 414, "target_too_long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header or trailer has come."""
        self._num_bytes += len(name) + len(value)
        if self._num_bytes > self._max_bytes or len(self.headers) >= self._limits.num_headers:
            self._refuse_parsing(_HEADERS_TOO_LARGE, 431, "headers_too_large")
        name = name.lower()
        if name in _FRAMING_HEADERS:
            self._read_header(name, value)
        self.headers.append((name, value))

    def _read_header(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._num_hosts += 1
        elif name == b"expect":  # clients of HTTP/1.0 do not know the response
            is_asked = value.lower() == b"100-continue"
            self.expect_100_continue = is_asked and self.parser.get_http_version() == "1.1"
        elif value.strip().lower() != b"chunked":
            self._refuse_parsing(_UNKNOWN_CODING)

    def on_headers_complete(self) -> None:
        """All headers have come: the request can be served."""
        if self.parser.get_method() == b"CONNECT":
            self._refuse_parsing(_NO_TUNNELS)
        self._ignores_upgrade = self.parser.should_upgrade()
        if self._ignores_upgrade:
            return
        self._check_hosts()
        if len(self.pipeline) >= self._limits.num_pipelined:
            self._refuse_parsing(_TOO_MANY_PIPELINED)
        self._use_host_of_target()
        super().on_headers_complete()
        self._begin(Phase.BODY)
        self._num_bytes = 0

    def _check_hosts(self) -> None:
        """Refuse a request whose host is not given, or given twice; clients of HTTP/1.0 may."""
        may_omit = self._num_hosts == 0 and self.parser.get_http_version() != "1.1"
        if self._num_hosts != 1 and not may_omit:
            self._refuse_parsing("the header Host is missing or given twice; send it once")

    def _use_host_of_target(self) -> None:
        """The host of an absolute target counts, and not that of the header (RFC 9112, 3.2.2)."""
        if match := _AUTHORITY.match(self.url):
            others = [header for header in self.headers if header[0] != b"host"]
            self.headers[:] = [*others, (b"host", match[1])]

    def on_body(self, body: bytes) -> None:
        """A part of the body has come."""
        self._num_body_bytes += len(body)
        self._max_bytes += 8 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The last byte of a request has come."""
        if self._ignores_upgrade:
            return
        super().on_message_complete()
        self._begin(Phase.NONE)
        if self.pipeline or not self.flow.read_paused:  # else the application has to ask for more
            self.scope["state"][BODY] = bytes(self.cycle.body)
        if not self.pipeline:  # a large body has paused it, and nobody would see its client leave
            self.flow.resume_reading()

    def _refuse_parsing(self, text: str, status: int = 400, code: str = "bad_request") -> NoReturn:
        """Stop at what breaks a limit or the rules. Raises HttpError."""
        self._refusal = HttpError(status, text, code=code)
        raise self._refusal

    def _line(self) -> tuple[str, str]:
        """Method and path of the request that is being received, as far as they are known."""
        if self._phase is Phase.BODY:
            return self.scope["method"], self.scope["path"]
        if self._phase is not Phase.NONE and self.url:
            path = self.url.partition(b"?")[0].decode("latin-1")
            return self.parser.get_method().decode("latin-1"), path
        return "-", "-"
