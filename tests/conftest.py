"""What holds for all tests: Triton's interpreter, a cache, the garbage collector, the order.

Without a GPU, Triton's kernels run in its interpreter. Triton reads that when it is imported, so it
is set before any test is: which tests are collected first makes no difference.

What collecting the tests has made is spared the collector's looks: all modules are imported and a
million objects are there by then, and nearly all of them stay.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import faster_interpreter
import pytest
from gpu_marks import capability_here, missing_gpu
from hypothesis import HealthCheck, settings
from prepared_files import wait_for_prepared_files

gc.disable()

# an example, and making it, may take as long as a busy machine needs
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# begun first, longest first: what is begun last keeps one process busy while the others have ended
LONG = [
    "test_triton_compile.py",
    "test_interrupts.py",
    "test_triton_kernels.py",
    "test_processes.py",
    "test_page_browser.py",
    "test_attention_params.py",
    "test_several_models.py",
    "test_invariant.py",
    "test_mixed_load.py",
    "test_families_engine.py",
    "test_scheduler_properties.py",
    "test_grammar_checker.py",
    "test_compiled_start.py",
]


if capability_here() == (0, 0):
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Engines leave prepared weights; workers of one run share them."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="quire-tests-")
        os.environ["XDG_CACHE_HOME"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(autouse=True)
def _no_writer_of_an_earlier_test() -> None:
    """Its lines in the log would be taken for this test's."""
    wait_for_prepared_files()


@pytest.fixture
def no_thread_left(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], AbstractContextManager[None]]:
    """Makes contexts in which the system starts no thread."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    @contextmanager
    def context() -> Iterator[None]:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            yield

    return context


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    index = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: index.get(item.path.name, len(LONG)))
    for item in items:
        if kind := missing_gpu(item.iter_markers("gpu"), capability_here()):
            item.add_marker(pytest.mark.skip(reason=f"needs a {kind} GPU"))


def pytest_collection_finish() -> None:
    if interpreter := sys.modules.get("triton.runtime.interpreter"):
        faster_interpreter.install(interpreter)
    gc.freeze()
    gc.enable()
