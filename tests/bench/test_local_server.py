"""A server process of our own, with another program in the place of `quire serve`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from quire.bench import local_server
from quire.errors import EngineError, QuireError, UserError

READY = """
import os, sys, time
print("loading", flush=True)
with open(sys.argv[-1], "w") as note:
    note.write(str(os.getpid()))
print("Quire is ready at http://127.0.0.1:1234 after 0.1 s", flush=True)
time.sleep(60)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `quire` package whose main module a test writes."""
    package = tmp_path / "quire"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "__main__.py"


def start(options: list[str]) -> str:
    async def run() -> str:
        async with local_server.local_server(options) as url:
            return url

    return asyncio.run(run())


def test_ready_then_stopped(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(READY)
    note = tmp_path / "pid"
    assert start([str(note)]) == "http://127.0.0.1:1234"
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("import sys; sys.exit('error: port is 0; give another')", UserError, "^port is 0; give"),
        ("raise RuntimeError('oh')", EngineError, "RuntimeError: oh"),
        ("", EngineError, "said nothing"),
    ],
)
def test_server_that_does_not_start(
    stand_in: Path, code: str, kind: type[QuireError], words: str
) -> None:
    stand_in.write_text(code)
    with pytest.raises(kind, match=words):
        start([])


def test_server_that_hangs(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(local_server, "START_SECONDS", 0.3)
    with pytest.raises(EngineError, match="did not start"):
        start([])
