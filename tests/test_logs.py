"""Log lines as machines read them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys

from quire.logs import JsonFormatter, LineHandler, TextFormatter


def test_a_line_stays_one_line_whatever_is_in_it() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        info = sys.exc_info()
    record = logging.LogRecord("quire.x", logging.ERROR, "f.py", 1, "a\nb %s", ("c",), info)
    record.request_id = "r"
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr)["message"] == "loud"


class Stream(io.StringIO):
    """Counts what is written, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return len(text)


def line(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("quire.x", level, "f.py", 1, text, None, None)


def test_lines_of_one_turn_are_written_together_and_a_warning_at_once() -> None:
    stream = Stream()
    handler = LineHandler(stream)

    async def turns() -> None:
        for text in "ab":
            handler.handle(line(logging.INFO, text))
        assert stream.pieces == []
        await asyncio.sleep(0)
        assert stream.pieces == ["a\nb\n"]
        handler.handle(line(logging.INFO, "c"))
        handler.handle(line(logging.WARNING, "d"))
        assert stream.pieces[1:] == ["c\nd\n"]
        handler.handle(line(logging.INFO, "e"))

    asyncio.run(turns())
    handler.handle(line(logging.INFO, "f"))  # outside a loop
    assert "".join(stream.pieces) == "a\nb\nc\nd\ne\nf\n"


def test_lines_of_a_loop_that_was_closed_hold_up_no_others() -> None:
    stream = Stream()
    handler = LineHandler(stream)

    async def later() -> None:
        handler.handle(line(logging.INFO, "b"))
        await asyncio.sleep(0)
        assert stream.pieces == ["a\nb\n"]

    loop = asyncio.new_event_loop()
    loop.call_soon(handler.handle, line(logging.INFO, "a"))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert stream.pieces == []
    asyncio.run(later())


def test_a_line_for_people() -> None:
    record = line(logging.INFO, "hello")
    record.created, record.msecs = 1.25, 250.0
    text = TextFormatter().format(record)
    assert text.endswith(",250 INFO quire.x: hello")
    assert text == logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s").format(
        record
    )
    try:
        raise ValueError("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert TextFormatter().format(record).endswith("ValueError: why")
