"""A thread that steps back does so alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.background import (
    MODULE,
    NICENESS,
    BackgroundThreads,
    call_native,
    hurry,
    is_hurried,
    lower_priority,
)
from quire.tokenizer.encoder import LONG_CHARS, Encoder

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


def test_python_code_keeps_its_priority_and_native_calls_do_not() -> None:
    """A thread of low priority that has the GIL and no core would hold up the event loop."""
    usual = _niceness()
    threads = BackgroundThreads(1, "test")
    seen = threads.submit(lambda: (_niceness(), call_native(_niceness), _niceness())).result()
    threads.shutdown()
    assert seen == (usual, min(19, usual + NICENESS), usual)
    assert call_native(_niceness) == usual, "elsewhere nothing runs beside it"


def test_native_threads_end_with_the_others() -> None:
    threads = BackgroundThreads(1, "ending")
    threads.submit(call_native, _niceness).result()
    threads.shutdown()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("ending")]


def test_work_that_outlives_its_threads_shutdown_still_calls() -> None:
    threads, go = BackgroundThreads(1, "outlived"), threading.Event()
    late = threads.submit(lambda: (go.wait(), call_native(lambda: 7))[1])
    threads.shutdown(wait=False)
    go.set()
    assert late.result(10) == 7


def test_an_inner_hurry_does_not_end_the_outer() -> None:
    with hurry():
        with hurry():
            pass
        assert is_hurried()
    assert not is_hurried()


def test_long_texts_are_encoded_at_a_low_priority() -> None:
    class Backend:
        def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
            del texts, add_special_tokens
            return [SimpleNamespace(ids=[_niceness()])]

    encoder, usual = Encoder(cast(Any, Backend()), ()), _niceness()
    threads = BackgroundThreads(1, "test")
    short, long = threads.map(encoder.ids, ["a" * LONG_CHARS, "a" * (LONG_CHARS + 1)])
    threads.shutdown()
    assert (short, long) == ([usual], [min(19, usual + NICENESS)])


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
    run = subprocess.run(
        [sys.executable, "-m", MODULE, "guest"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    before = _niceness()
    assert run.stdout.split() == [str(min(19, before + NICENESS)), str(before)]
