"""Logging, the same in all processes: lines as text or JSON.

A line never holds a prompt, an answer or a key; fields beyond the message come with `extra`, under
the names in FIELDS.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from datetime import UTC, datetime
from typing import TextIO

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
    """Configure logging of this process: to stderr, as text or JSON."""
    handler = LineHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if options.format == "json" else TextFormatter())
    logging.logThreads = logging.logMultiprocessing = False  # slow, and unused
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel("WARNING")  # its start and end messages are our own
    if options.level != "debug":
        logging.getLogger("asyncio").setLevel("WARNING")


class LineHandler(logging.Handler):
    """Writes log lines to a stream; those of one turn of an event loop in one write."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: list[str] = []
        self._turn: asyncio.AbstractEventLoop | None = (
            None  # that will write them at the end of its turn
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line: a warning at once, others when the loop that runs here ends its turn."""
        try:
            self._lines.append(f"{self.format(record)}\n")
            if record.levelno >= logging.WARNING:
                self.flush()
            elif self._turn is None or not self._turn.is_running():  # it may have been closed
                self._turn = _running_loop()
                if self._turn is None:
                    self.flush()
                else:
                    self._turn.call_soon(self.flush)
        except Exception:  # as in all handlers: logging must not raise
            self.handleError(record)

    def flush(self) -> None:
        """Write the log lines that have been collected."""
        self.acquire()
        try:
            lines, self._lines, self._turn = self._lines, [], None
            if lines:
                with contextlib.suppress(OSError, ValueError):  # nobody is left to read them
                    self._stream.write("".join(lines))
                    self._stream.flush()
        finally:
            self.release()


class TextFormatter(logging.Formatter):
    """Time, level, who says it, and what; a traceback below."""

    def __init__(self) -> None:
        super().__init__()
        self._second, self._shown = 0, ""

    def format(self, record: logging.LogRecord) -> str:
        """A log record as one line of text."""
        second = int(record.created)
        if second != self._second:  # each is put into words once
            self._second = second
            self._shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        line = f"{self._shown},{int(record.msecs):03} {record.levelname} {record.name}: "
        line += record.getMessage()
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line; tracebacks are a field, so that a line stays a line."""

    def format(self, record: logging.LogRecord) -> str:
        """A log record as one line of JSON."""
        created = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        line |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
