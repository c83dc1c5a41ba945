"""A thread that steps back does so alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quire.background import MODULE, NICENESS, lower_priority

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
