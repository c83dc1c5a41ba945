"""What all commands leave behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """A command's log handler would outlive its test, with a stream that is closed by then."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes a pipe with some bytes standard input. is_open: its writer stays."""
    with ExitStack() as stack:

        def pipe_in(data: bytes, *, is_open: bool = False) -> None:
            source, target = os.pipe()
            os.write(target, data)
            if is_open:
                stack.callback(os.close, target)
            else:
                os.close(target)
            stdin = stack.enter_context(open(source, newline="\n", encoding="ascii"))
            monkeypatch.setattr("sys.stdin", stdin)

        yield pipe_in
