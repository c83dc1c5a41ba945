"""A thread that steps back does so alone."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from child_process import run_to_end

from quire.background import (
    MODULE,
    NICENESS,
    BackgroundThreads,
    LazyThreads,
    hurry,
    is_hurried,
    lower_priority,
)
from quire.errors import OverloadedError
from quire.processes import start_thread
from quire.tokenizer.encoder import Encoder
from quire.tokenizer.pattern_check import QUICK_CHARS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority there")


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_thread_steps_back_alone() -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: (lower_priority(), seen.append(_niceness())))
    before = _niceness()
    thread.start()
    thread.join()
    assert seen == [min(19, before + NICENESS)]
    assert _niceness() == before


def test_an_inner_hurry_does_not_end_the_outer() -> None:
    with hurry():
        with hurry():
            pass
        assert is_hurried()
    assert not is_hurried()


def test_long_texts_are_encoded_at_a_low_priority_beside_an_event_loop() -> None:
    """Python code keeps its priority: with the GIL and no core it would hold up the event loop."""

    class Backend:
        normalizer = pre_tokenizer = decoder = to_str = None

        def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
            del texts, add_special_tokens
            return [SimpleNamespace(ids=[_niceness()])]

    encoder, usual = Encoder(cast(Any, Backend()), ()), _niceness()
    threads = BackgroundThreads(1, "test")
    short, long = threads.map(encoder.ids, ["a" * QUICK_CHARS, "a" * (QUICK_CHARS + 1)])
    threads.shutdown()
    assert (short, long) == ([usual], [min(19, usual + NICENESS)])
    assert encoder.ids("a" * (QUICK_CHARS + 1)) == [usual], "elsewhere nothing runs beside it"


def test_a_module_is_imported_behind_others_and_runs_beside_them(
    tmp_path: Path,
) -> None:
    code = (
        "import os, threading\n"
        "def niceness(): return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())\n"
        "imported = niceness()\n"
        "def main(): print(imported, niceness())\n"
    )
    (tmp_path / "guest.py").write_text(code)
    run = run_to_end(
        [sys.executable, "-m", MODULE, "guest"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        check=True,
    )
    before = _niceness()
    assert run.stdout.split() == [str(min(19, before + NICENESS)), str(before)]


def test_where_no_thread_can_be_started_work_waits_for_one_or_is_refused(
    no_thread_left: Callable[[], AbstractContextManager[None]],
) -> None:
    threads, done, may_end = LazyThreads(2, "test"), list[str](), threading.Event()
    with no_thread_left():
        with pytest.raises(OverloadedError, match="no thread could be started"):
            start_thread(may_end.set, "test")
        with pytest.raises(OverloadedError, match="no thread could be started"):
            threads.submit(done.append, "refused")
    first = threads.submit(may_end.wait, 60)
    with no_thread_left():
        second = threads.submit(done.append, "later")
    may_end.set()
    assert first.result(60)
    second.result(60)
    threads.shutdown()
    assert done == ["later"]
