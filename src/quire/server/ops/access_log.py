"""One log line for each HTTP request that has ended."""

from __future__ import annotations

import logging
import time

from quire.server.http.request_record import RequestRecord

logger = logging.getLogger("quire.access")


def log_access(record: RequestRecord, *, is_probe: bool) -> None:
    """Write the line; of probes, which come all the time, only for those who debug."""
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
    text = f"{record.method} {_shown(path)} {record.status or 'no answer'} {seconds:.3f} s"
    if record.job is not None:
        usage, reason = record.usage, finish_reason(record)
        fields["model"] = record.job.model
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
    """A record made by hand: a logger would look for the line of code that logs, and for the names
    of threads and processes, which nobody asks for."""

    def __init__(self, level: int, text: str, fields: dict[str, object]) -> None:
        created = time.time()
        self.__dict__ = _COMMON[level] | fields
        self.msg, self.created, self.msecs = text, created, created % 1.0 * 1000.0


_COMMON = {
    level: vars(logging.LogRecord(logger.name, level, __file__, 0, "", (), None))
    for level in (logging.DEBUG, logging.INFO)
}


def finish_reason(record: RequestRecord) -> str:
    """Why its answers ended, each reason once: "stop,length"; "abort" where one did not."""
    reasons = record.usage.finish_reasons
    asked = 0 if record.job is None else len(record.job.prompts) * record.job.sampling.n
    if len(reasons) < asked:
        reasons = [*reasons, "abort" if record.error_code is None else "error"]
    return ",".join(dict.fromkeys(reasons))


def _shown(path: str) -> str:
    """As it may stand in a log: the client chose it."""
    if path.isascii() and path.isprintable() and "\\" not in path:
        return path
    return path.encode("unicode_escape").decode()[:256]
