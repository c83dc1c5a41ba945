"""How log lines look, the same in each process: text for people, JSON for machines.

A line never holds a prompt, an answer or a key; fields beyond the message come with `extra`, under
the names in FIELDS.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

FIELDS = (
    *("request_id", "method", "path", "status", "seconds", "model"),
    *("prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason", "error_code"),
)


class LogOptions(msgspec.Struct, frozen=True):
    """level: the least that is logged, such as "info"; format: "text" or "json"."""

    level: str
    format: str


def configure_logging(options: LogOptions) -> None:
    """Log to stderr like this, in this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if options.format == "json" else TextFormatter())
    logging.logThreads = logging.logMultiprocessing = False  # costly, and no line tells them
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel("WARNING")  # what it says at start and end, we say
    if options.level != "debug":
        logging.getLogger("asyncio").setLevel("WARNING")


class TextFormatter(logging.Formatter):
    """Time, level, who says it, and what."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class JsonFormatter(logging.Formatter):
    """One JSON object per line; tracebacks are a field, so that a line stays a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        line |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
