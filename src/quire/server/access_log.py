"""One log line for each HTTP request that has ended."""

from __future__ import annotations

import logging
import time

from quire.server.record import RequestRecord
from quire.server.usage import Usage

logger = logging.getLogger("quire.access")


def log_access(record: RequestRecord, *, is_probe: bool) -> None:
    """Write the line; of probes, which come all the time, only for those who debug."""
    level = logging.DEBUG if is_probe else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "method": record.method,
        "path": record.path[:256],
        "status": record.status,
        "seconds": round(record.seconds, 6),
    }
    usage, reason = record.usage.total(), finish_reason(record)
    if record.job is not None:
        fields |= {
            "model": record.job.model,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "finish_reason": reason,
        }
    if record.error_code is not None:
        fields["error_code"] = record.error_code
    logger.handle(_Line(level, _text(record, usage, reason), fields))


class _Line(logging.LogRecord):
    """A record made by hand: a logger would look for the line of code that logs, and for the names
    of threads and processes, which nobody asks for."""

    def __init__(self, level: int, text: str, fields: dict[str, object]) -> None:
        created = time.time()
        vars(self).update(_COMMON, **fields)
        self.levelno, self.levelname = level, logging.getLevelName(level)
        self.msg, self.created, self.msecs = text, created, created % 1.0 * 1000.0


_COMMON = vars(logging.LogRecord(logger.name, logging.INFO, __file__, 0, "", (), None))


def finish_reason(record: RequestRecord) -> str:
    """Why its answers ended, each reason once: "stop,length"; "abort" where one did not."""
    reasons = record.usage.finish_reasons
    asked = 0 if record.job is None else len(record.job.prompts) * record.job.sampling.n
    if len(reasons) < asked:
        reasons = [*reasons, "abort" if record.error_code is None else "error"]
    return ",".join(dict.fromkeys(reasons))


def _text(record: RequestRecord, usage: Usage, reason: str) -> str:
    status = record.status or "no answer"
    path = record.path[:256]
    if not (path.isascii() and path.isprintable()) or "\\" in path:  # the client chose it
        path = path.encode("unicode_escape").decode()[:256]
    text = f"{record.method} {path} {status} {record.seconds:.3f} s"
    if record.job is not None:
        text += f", {usage.prompt_tokens} + {usage.completion_tokens} tokens"
        text += f", {reason}"
    if record.error_code is not None:
        text += f", {record.error_code}"
    return f"{text} [{record.request_id}]"
