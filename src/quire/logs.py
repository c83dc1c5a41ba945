"""Logging, the same in all processes: lines as text or JSON.

No process waits for who reads its lines (line_writer.py). A line never holds a prompt, an
answer or a key; fields beyond the message are those of a RecordWithFields.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import msgspec

from quire.line_writer import LineWriter, QueuedStream

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0  # at the end of a process, for lines that are not written yet
DROPPED = "%d log lines dropped: the reader of stderr is too slow"

# log each request to the hub
_DOWNLOADERS = ("httpx", "httpx2", "huggingface_hub", "urllib3", "filelock")


class LogOptions(msgspec.Struct, frozen=True):
    """Settings of the log. level: the least, such as "info". format: "text" or "json"."""

    level: str
    format: str


_writer: LineWriter | None = None


def configure_logging(options: LogOptions) -> None:
    """Log to stderr like this, in this process; nothing that is written there waits any more."""
    handler = _handler(JsonFormatter() if options.format == "json" else TextFormatter())
    logging.logThreads = logging.logMultiprocessing = False  # slow, and unused
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("uvicorn").setLevel("WARNING")  # its start and end messages are our own
    for name in _DOWNLOADERS if options.level == "debug" else ("asyncio", *_DOWNLOADERS):
        logging.getLogger(name).setLevel("WARNING")


def _handler(formatter: logging.Formatter) -> logging.Handler:
    """The stream of log lines; if stderr is a file descriptor, its reader is not waited for."""
    global _writer
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    with suppress(OSError, ValueError):  # a stream in memory, as in tests
        write = partial(os.write, sys.stderr.fileno())
        _writer = LineWriter(write, partial(_dropped, formatter))
        handler = LineHandler(_writer)
        sys.stderr = QueuedStream(_writer, sys.stderr)  # tracebacks, and what libraries print
    handler.setFormatter(formatter)
    return handler


def num_dropped_lines() -> int:
    """Log lines of this process that were dropped because the earlier ones were not read."""
    return 0 if _writer is None else _writer.num_dropped


def _dropped(formatter: logging.Formatter, count: int) -> str:
    """The line that says how many were dropped."""
    args = (logger.name, logging.WARNING, __file__, 0, DROPPED, (count,), None)
    return f"{formatter.format(logging.LogRecord(*args))}\n"


class LineHandler(logging.Handler):
    """Passes log lines to a writer, which drops and counts those that it has no room for."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self.writer = writer

    def handle(self, record: logging.LogRecord) -> bool:
        """Handle a record without a lock and filters of the handler: the writer has a lock."""
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line; warnings are written at once, others some milliseconds later."""
        is_urgent = record.levelno >= logging.WARNING
        try:
            self.writer.put(f"{self.format(record)}\n", hurry=is_urgent)
            if is_urgent:
                self.writer.wait_briefly()
        except Exception:  # as in all handlers: logging must not raise
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all lines are written, but not for long."""
        self.writer.wait(FLUSH_SECONDS)


class RecordWithFields(logging.LogRecord):
    """A log record that has fields besides its message in a JSON log."""

    def fields(self) -> dict[str, object]:
        """The fields by name; none by default."""
        return {}


def _indented(text: str) -> str:
    """Text that looks like no other line, whatever a file's name has: later lines are indented."""
    if text.isprintable():
        return text
    lines = text.split("\n")
    return "\n    ".join("".join(c if c.isprintable() else repr(c)[1:-1] for c in x) for x in lines)


class TextFormatter(logging.Formatter):
    """Time, level, who says it, and what; a traceback below."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = 0, ""  # the latest second, and its text

    def format(self, record: logging.LogRecord) -> str:
        """A log record as text, of which only the first line begins with a time."""
        latest, shown = self._shown
        if (second := int(record.created)) != latest:  # each is put into words once
            shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._shown = second, shown
        line = f"{shown},{int(record.msecs):03} {record.levelname} {record.name}: "
        line += _indented(record.getMessage())
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
        if isinstance(record, RecordWithFields):
            line |= record.fields()
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
