"""Access log: one line for each HTTP request that has ended."""

from __future__ import annotations

import logging
import time

from quire.server.api.common.generation_record import generation_of
from quire.server.http.request_record import RequestRecord

logger = logging.getLogger("quire.access")


def log_access(record: RequestRecord, *, is_probe: bool) -> None:
    """Write the line of a request. Probes, which come all the time, only at level debug."""
    level = logging.DEBUG if is_probe else logging.INFO
    if not logger.isEnabledFor(level):
        return
    path, seconds = record.path[:256], record.seconds
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "method": record.method,
        "path": path,
        "status": record.status,
        "seconds": round(seconds, 6),
    }
    text = f"{record.method} {_escaped(path)} {record.status or 'no answer'} {seconds:.3f} s"
    if (generation := generation_of(record)) is not None:
        usage, reason = generation.usage, generation.finish_reason(record.error_code)
        fields["model"] = generation.job.model
        fields["prompt_tokens"] = usage.prompt_tokens
        fields["completion_tokens"] = usage.completion_tokens
        fields["cached_tokens"] = usage.cached_tokens
        fields["finish_reason"] = reason
        text += f", {usage.prompt_tokens} + {usage.completion_tokens} tokens, {reason}"
    if record.error_code is not None:
        fields["error_code"] = record.error_code
        text += f", {record.error_code}"
    logger.handle(_Line(level, f"{text} [{record.request_id}]", fields))


class _Line(logging.LogRecord):
    """A log record made without Logger.log, which would look up the calling line of code and the
    names of thread and process: no formatter reads them here."""

    def __init__(self, level: int, text: str, fields: dict[str, object]) -> None:
        created = time.time()
        self.__dict__ = _COMMON[level] | fields
        self.msg, self.created, self.msecs = text, created, created % 1.0 * 1000.0


_COMMON = {
    level: vars(logging.LogRecord(logger.name, level, __file__, 0, "", (), None))
    for level in (logging.DEBUG, logging.INFO)
}


def _escaped(path: str) -> str:
    """A path, which the client chose, without characters that could fake a log line."""
    if path.isascii() and path.isprintable() and "\\" not in path:
        return path
    return path.encode("unicode_escape").decode()[:256]
