"""Access log: one line for each HTTP request that has ended."""

from __future__ import annotations

import logging
import time

from quire.logs import RecordWithFields
from quire.server.api.common.generation_job import generation_of
from quire.server.http.request_record import RequestRecord

logger = logging.getLogger("quire.access")

_MAX_PATH = 256  # characters


def log_access(record: RequestRecord, *, is_probe: bool) -> None:
    """Write the line of a request. Probes, which come all the time, only at level debug."""
    level = logging.DEBUG if is_probe else logging.INFO
    if logger.isEnabledFor(level):
        logger.handle(_Line(level, record))


class _Line(RecordWithFields):
    """A log record made without Logger.log, which would look up the calling line of code and the
    names of thread and process: no formatter reads them here."""

    def __init__(self, level: int, request: RequestRecord) -> None:
        self.__dict__ = _COMMON[level].copy()
        self.created = created = time.time()
        self.msecs = created % 1.0 * 1000.0
        self.msg = _text_of(request)
        self._request = request

    def fields(self) -> dict[str, object]:
        """The facts of the request for a JSON log."""
        request = self._request
        fields: dict[str, object] = {
            "request_id": request.request_id,
            "method": request.method,
            "path": request.path[:_MAX_PATH],
            "status": request.status,
            "seconds": round(request.seconds, 6),
        }
        if (generation := generation_of(request)) is not None:
            usage = generation.usage
            fields["model"] = generation.job.model
            fields["prompt_tokens"] = usage.prompt_tokens
            fields["completion_tokens"] = usage.completion_tokens
            fields["cached_tokens"] = usage.cached_tokens
            fields["finish_reason"] = generation.finish_reason(request.error_code)
        if request.error_code is not None:
            fields["error_code"] = request.error_code
        return fields


def _text_of(request: RequestRecord) -> str:
    """The line of a request as text: its fields, and what it took."""
    path, answered = _escaped(request.path[:_MAX_PATH]), request.status or "no answer"
    text = f"{request.method} {path} {answered} {request.seconds:.3f} s"
    if (generation := generation_of(request)) is not None:
        usage, reason = generation.usage, generation.finish_reason(request.error_code)
        text += f", {usage.prompt_tokens} + {usage.completion_tokens} tokens, {reason}"
    if request.error_code is not None:
        text += f", {request.error_code}"
    return f"{text} [{request.request_id}]"


_COMMON = {
    level: vars(logging.LogRecord(logger.name, level, __file__, 0, "", (), None))
    for level in (logging.DEBUG, logging.INFO)
}


def _escaped(path: str) -> str:
    """A path, which the client chose, without characters that could fake a log line."""
    if path.isascii() and path.isprintable() and "\\" not in path:
        return path
    return path.encode("unicode_escape").decode()[:256]
