"""Log lines as machines read them."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from child_process import run_to_end

from quire.line_writer import BRIEF_WAIT_SECONDS, MAX_QUEUED_BYTES, LineWriter
from quire.logs import JsonFormatter, LineHandler, RecordWithFields, TextFormatter


def test_a_line_stays_one_line_whatever_is_in_it() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        info = sys.exc_info()

    class Record(RecordWithFields):
        def fields(self) -> dict[str, object]:
            return {"request_id": "r"}

    record = Record("quire.x", logging.ERROR, "f.py", 1, "a\nb %s", ("c",), info)
    record.other = "not told"
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["message"], line["request_id"]) == ("error", "a\nb c", "r")
    assert "ValueError" in line["traceback"]
    assert "other" not in line


def test_levels_and_format_are_set_for_the_process() -> None:
    code = (
        "import logging; from quire.logs import LogOptions, configure_logging\n"
        "configure_logging(LogOptions('warning', 'json')); log = logging.getLogger('a')\n"
        "log.info('quiet'); log.warning('loud')"
    )
    done = run_to_end([sys.executable, "-c", code], check=True)
    assert json.loads(done.stderr)["message"] == "loud"


def test_requests_to_the_hub_are_not_logged() -> None:
    code = (
        "import logging; from quire.logs import LogOptions, configure_logging\n"
        "configure_logging(LogOptions('info', 'text'))\n"
        "for name in ('httpx', 'httpx2', 'huggingface_hub', 'urllib3', 'filelock'):\n"
        "    logging.getLogger(name).info('quiet'); logging.getLogger(name).warning('loud')"
    )
    done = run_to_end([sys.executable, "-c", code], check=True)
    assert (done.stderr.count("quiet"), done.stderr.count("loud")) == (0, 5)


class Reader:
    """Takes what is written once it is open, and blocks the writer before."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.is_open = threading.Event()
        self.has_come = threading.Event()

    def write(self, data: bytes) -> int:
        self.has_come.set()
        self.is_open.wait()
        piece = data[: 1 << 14]  # a pipe may take a part
        self.pieces.append(piece)
        return len(piece)

    @property
    def text(self) -> str:
        return b"".join(self.pieces).decode()


def handler_of(reader: Reader) -> LineHandler:
    return LineHandler(LineWriter(reader.write, "{} dropped\n".format))


def line(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("quire.x", level, "f.py", 1, text, None, None)


def test_lines_wait_until_a_thread_can_be_started(
    no_thread_left: Callable[[], AbstractContextManager[None]],
) -> None:
    reader = Reader()
    reader.is_open.set()
    handler = handler_of(reader)
    with no_thread_left():
        handler.handle(line(logging.INFO, "first"))
    handler.handle(line(logging.INFO, "second"))
    handler.flush()
    assert reader.text == "first\nsecond\n"


def test_lines_come_in_their_order_and_whole() -> None:
    reader = Reader()
    reader.is_open.set()
    handler = handler_of(reader)
    texts = [f"{number} {'ü' * (number % 700)}" for number in range(1000)]
    for text in texts:
        handler.handle(line(logging.INFO, text))
    handler.flush()
    assert reader.text == "".join(f"{text}\n" for text in texts)


def test_a_reader_that_stops_costs_lines_and_no_time() -> None:
    reader = Reader()
    handler, text = handler_of(reader), "a" * 999
    begin = time.monotonic()
    for _ in range(3000):
        handler.handle(line(logging.WARNING, text))
    assert time.monotonic() - begin < 2
    num_queued = MAX_QUEUED_BYTES // 1000
    assert handler.writer.num_dropped == 3000 - num_queued
    begin = time.monotonic()
    handler.flush()
    assert 0.9 < time.monotonic() - begin < 3  # it waits, and not for long
    reader.is_open.set()
    handler.flush()
    handler.handle(line(logging.INFO, "later"))
    handler.flush()
    assert reader.text == f"{text}\n" * num_queued + f"{3000 - num_queued} dropped\nlater\n"


def test_lines_are_written_together_and_warnings_at_once() -> None:
    reader = Reader()
    reader.is_open.set()
    handler = handler_of(reader)
    for _ in range(20):
        handler.handle(line(logging.INFO, "a"))
        time.sleep(0.001)
    handler.handle(line(logging.WARNING, "b"))
    deadline = time.monotonic() + 5
    while not reader.text.endswith("b\n") and time.monotonic() < deadline:
        time.sleep(0.001)
    assert reader.text == "a\n" * 20 + "b\n"
    assert len(reader.pieces) < 15


def test_a_forked_process_has_a_writer_of_its_own() -> None:
    code = (
        "import logging, os; from quire.logs import LogOptions, configure_logging\n"
        "configure_logging(LogOptions('info', 'text')); log = logging.getLogger('a')\n"
        "log.info('parent')\n"
        "if os.fork() == 0: log.info('child'); logging.shutdown(); os._exit(0)\n"
        "os.wait()"
    )
    done = run_to_end([sys.executable, "-c", code], check=True)
    assert sorted(line.split()[-1] for line in done.stderr.splitlines()) == ["child", "parent"]


def test_what_python_prints_takes_the_same_path() -> None:
    code = (
        "import sys, warnings; from quire.logs import LogOptions, configure_logging\n"
        "configure_logging(LogOptions('info', 'json'))\n"
        "warnings.warn('old', stacklevel=1); print('plain', file=sys.stderr); sys.stderr.flush()\n"
        "raise ValueError('last')"
    )
    done = run_to_end([sys.executable, "-c", code])
    first, second, *others = done.stderr.splitlines()
    assert "old" in json.loads(first)["message"]
    assert second == "plain"
    assert others[-1] == "ValueError: last"


@pytest.mark.parametrize(
    "last", ["log.info('before'); log.error('last')", "print('last', file=sys.stderr, flush=True)"]
)
@pytest.mark.parametrize("death", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_last_words_of_a_process_that_dies_at_once_are_written(last: str, death: str) -> None:
    code = (
        "import logging, os, signal, sys; from quire.logs import LogOptions, configure_logging\n"
        "configure_logging(LogOptions('info', 'text')); log = logging.getLogger('a')\n"
        f"{last}; {death}"
    )
    done = run_to_end([sys.executable, "-c", code])
    assert done.stderr.endswith("last\n")


def test_a_slow_reader_is_waited_for_once_until_it_has_caught_up() -> None:
    reader = Reader()
    handler = handler_of(reader)

    def seconds_of(num_warnings: int) -> float:
        begin = time.monotonic()
        for _ in range(num_warnings):
            handler.handle(line(logging.WARNING, "a"))
        return time.monotonic() - begin

    assert seconds_of(100) < 1  # 5 seconds if each waited
    reader.is_open.set()
    handler.flush()
    reader.is_open.clear()
    assert seconds_of(1) >= BRIEF_WAIT_SECONDS
    reader.is_open.set()


def test_stderr_has_the_attributes_of_the_stream_behind() -> None:
    code = (
        "import sys; from quire.logs import LogOptions, configure_logging\n"
        "before = sys.stderr; configure_logging(LogOptions('info', 'text'))\n"
        "assert sys.stderr.errors == before.errors and sys.stderr.name == '<stderr>'\n"
        "assert not hasattr(sys.stderr, 'missing')\n"
        "sys.stderr.buffer.write(b'bytes'); sys.stderr.buffer.flush()"
    )
    done = run_to_end([sys.executable, "-c", code])
    assert done.stderr == "bytes"


def test_a_line_for_people() -> None:
    record = line(logging.INFO, "hello")
    record.created, record.msecs = 1.25, 250.0
    text = TextFormatter().format(record)
    assert text.endswith(",250 INFO quire.x: hello")
    assert text == logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s").format(
        record
    )
    record.msg = "model a\nb\x1b[2J\u2028é: loaded"  # a folder's name
    assert TextFormatter().format(record).endswith(": model a\n    b\\x1b[2J\\u2028é: loaded")
    try:
        raise ValueError("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert TextFormatter().format(record).endswith("ValueError: why")
