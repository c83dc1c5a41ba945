"""Log lines as machines read them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

from quire.logs import JsonFormatter


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
