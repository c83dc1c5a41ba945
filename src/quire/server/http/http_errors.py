"""Error responses: maps each exception to a status and a body, in the format of the path's API.

All texts are our own. The text of an unknown exception is never sent or logged.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Scope, Send

from quire.errors import (
    CallerLimitError,
    ContextLengthError,
    DeadlineError,
    DrainingError,
    EngineError,
    InvalidRequestError,
    ModelNotLoadedError,
    OverloadedError,
    QueueFullError,
    QueueTimeoutError,
)

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 1000

INVALID_REQUEST = "invalid_request_error"
CONTEXT_EXCEEDED = "exceed_context_size_error"  # llama.cpp's; the code is OpenAI's
ANTHROPIC_PATHS = "/v1/messages"
ANTHROPIC_VERSION = "anthropic-version"  # the header that only its clients send
_OLLAMA = "chat generate embed tags show ps version pull push copy create delete blobs"
OLLAMA_PATHS = tuple([f"/api/{name}" for name in _OLLAMA.split()])
_OLLAMA_ROOT, _DOUBLED = "/api/", "/api/v1"  # with unknown paths; the second is OpenAI's clients'
_SHARED_PATHS = "/v1/models"
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class HttpError(InvalidRequestError):
    """A request refused for its HTTP (headers, size, path), with the status of the response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        kind: str = INVALID_REQUEST,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.kind = kind
        self.headers = dict(headers or {})


class ErrorBody(msgspec.Struct):
    """OpenAI's error object. n_prompt_tokens, n_ctx: llama.cpp's, of what exceeds the context."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorReply(msgspec.Struct):
    """A failure ready to be sent, as a response or as the last event of a stream."""

    status: int
    error: ErrorBody
    headers: dict[str, str] = {}
    request_id: str | None = None

    def body(self, path: str) -> bytes:
        """The JSON text: OpenAI's `{"error": {...}}`, or another API's on its paths."""
        if path.startswith(_OLLAMA_ROOT) and not path.startswith(_DOUBLED):
            return _encoder.encode(PlainError(self.error.message))
        if path.startswith(ANTHROPIC_PATHS):
            return _encoder.encode(AnthropicError.of(self))
        return _encoder.encode(ErrorChunk(self.error))


class ErrorChunk(msgspec.Struct):
    """OpenAI's error, as a body and as a stream's last event."""

    error: ErrorBody


class PlainError(msgspec.Struct):
    """Ollama's error, as a body and as a stream's last line."""

    error: str


class ThreadDetails(msgspec.Struct):
    """By this Anthropic's SDK knows to send a conversation whole, without the field `thread`."""

    error_code: str
    unsupported: list[str]


_NO_THREADS = ThreadDetails("thread_unsupported_request", ["thread"])


class AnthropicErrorBody(msgspec.Struct):
    """Anthropic's error object."""

    type: str
    message: str
    details: ThreadDetails | UnsetType = UNSET


class AnthropicError(msgspec.Struct, tag_field="type", tag="error"):
    """Anthropic's error, as a body and as a stream's last event."""

    error: AnthropicErrorBody
    request_id: str | None = None

    @classmethod
    def of(cls, reply: ErrorReply) -> AnthropicError:
        """This failure in Anthropic's format; its type follows from the status."""
        kind = _ANTHROPIC_KINDS.get(reply.status, INVALID_REQUEST)
        details = _NO_THREADS if reply.error.param == "thread" else UNSET
        message = _too_long(reply.error) + reply.error.message
        return cls(AnthropicErrorBody(kind, message, details), reply.request_id)


def _too_long(error: ErrorBody) -> str:
    """The words by which Anthropic's clients know that a conversation has to be shortened."""
    prompt, context = error.n_prompt_tokens, error.n_ctx
    if prompt is UNSET or context is UNSET or prompt < context:
        return ""
    return f"prompt is too long: {prompt} tokens > {context - 1} maximum; "


# Our own ASGI extension: the message http.response.start may contain the body of the response.
SINGLE_MESSAGE = "quire.single_message"

_encoder = msgspec.json.Encoder()


def describe(error: BaseException, request_id: str) -> ErrorReply:
    """Map an exception to an error reply. Unknown ones are logged with their traceback."""
    reply = _described(error, request_id)
    reply.request_id = request_id
    return reply


def api_path_of(scope: Scope) -> str:
    """The path that decides the error format; on shared paths, the client's own API's path."""
    path: str = scope["path"]
    if path.startswith(_SHARED_PATHS) and ANTHROPIC_VERSION in Headers(scope=scope):
        return ANTHROPIC_PATHS
    return path


def id_headers(path: str, request_id: str) -> list[tuple[bytes, bytes]]:
    """The response headers with the request id; Anthropic's clients read another one."""
    value = request_id.encode()
    if path.startswith(ANTHROPIC_PATHS):
        return [(b"x-request-id", value), (b"request-id", value)]
    return [(b"x-request-id", value)]


def _described(error: BaseException, request_id: str) -> ErrorReply:
    match error:
        case HttpError():
            return _reply(error.status, error.kind, error, headers=error.headers)
        case ContextLengthError():
            reply = _reply(error.status, CONTEXT_EXCEEDED, error)
            reply.error.n_prompt_tokens, reply.error.n_ctx = error.num_prompt_tokens, error.limit
            return reply
        case InvalidRequestError():
            return _reply(error.status, INVALID_REQUEST, error)
        case HTTPException():
            return _described(_from_router(error), request_id)
        case OverloadedError():
            return _overloaded(error)
        case DeadlineError():
            body = ErrorBody(_text(error), "server_error", code="deadline_exceeded")
            return ErrorReply(504, body)
        case EngineError():
            logger.error("request %s failed: %s", request_id, error)
            return ErrorReply(500, ErrorBody(_text(error), "server_error", code="engine_error"))
    # without the exception's text, which may contain a user's
    where = "".join(traceback.format_tb(error.__traceback__))
    logger.error("request %s: internal error %s at\n%s", request_id, type(error).__name__, where)
    text = f"internal error; see the server log for request id {request_id}"
    return ErrorReply(500, ErrorBody(text, "server_error", code="internal_error"))


async def send_complete(
    send: Send,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    media_type: str = "application/json",
) -> None:
    """Send a complete response, such as a JSON text, in one message; see SINGLE_MESSAGE."""
    raw = [(b"content-type", media_type.encode())]
    for name, value in (headers or {}).items():
        raw.append((name.encode("latin-1"), value.encode("latin-1")))
    raw.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": raw, "body": body})


async def send_in_two_messages(send: Send, message: Message) -> None:
    """Send a complete response to a server that knows only ASGI's own messages."""
    body = message.pop("body")
    await send(message)
    await send({"type": "http.response.body", "body": body})


def _reply(
    status: int, kind: str, error: InvalidRequestError, headers: dict[str, str] | None = None
) -> ErrorReply:
    return ErrorReply(status, ErrorBody(_text(error), kind, error.param, error.code), headers or {})


def _overloaded(error: OverloadedError) -> ErrorReply:
    """429 for a full queue and a caller's limit, 503 for other overload; with Retry-After."""
    status, kind, code = 503, "service_unavailable_error", "server_is_overloaded"
    match error:
        case QueueFullError():
            status, kind, code = 429, "rate_limit_error", "queue_full"
        case CallerLimitError():
            status, kind, code = 429, "rate_limit_error", "rate_limit_exceeded"
        case QueueTimeoutError():
            code = "queue_timeout"
        case ModelNotLoadedError():
            code = "model_not_loaded"
        case DrainingError():
            code = "draining"
    headers = {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, DrainingError):
        headers["connection"] = "close"  # a new connection leads to another server
    return ErrorReply(status, ErrorBody(_text(error), kind, code=code), headers)


def _text(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _from_router(error: HTTPException) -> HttpError:
    if error.status_code == 405:
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "another").split(", ")))
        text = f"method not allowed on this path; use {allowed}"
        return HttpError(405, text, code="method_not_allowed", headers={"allow": allowed})
    text = "the request is malformed; check it against the API's description"
    return HttpError(error.status_code, text, code="bad_request")
