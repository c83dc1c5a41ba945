"""What holds for all tests: limits, chance, Triton's interpreter, a cache, the collector, order.

Without a GPU, Triton's kernels run in its interpreter. Triton reads that when it is imported, so it
is set before any test is: which tests are collected first makes no difference.

What collecting the tests has made is spared the collector's looks: all modules are imported and a
million objects are there by then, and nearly all of them stay.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import shutil
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager

import faster_interpreter
import pytest
from gpu_marks import capability_here, missing_gpu
from hypothesis import HealthCheck, settings
from prepared_files import wait_for_prepared_files

gc.disable()

# An example, and making it, may take as long as a busy machine needs. Each run has the same
# examples, so what fails was changed; --hypothesis-profile=explore looks for others.
settings.register_profile(
    "same", deadline=None, suppress_health_check=[HealthCheck.too_slow],
    derandomize=True, database=None, print_blob=True,
)  # fmt: skip
settings.register_profile("explore", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

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


STDERR = pytest.StashKey[int]()


# Of the person who runs the tests: servers on loopback need no proxy, keys and widths are a test's.
for name in ("COLUMNS", "FORCE_COLOR", "QUIRE_ADMIN_API_KEY", "QUIRE_API_KEY"):
    os.environ.pop(name, None)
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]


def limit_time(item: pytest.Item) -> None:
    """End the process later than pytest-timeout raises, which C and uvloop never hear of.

    Neither does what hangs after that error, in a fixture's end.
    """
    seconds = 1.15 * float(item.config.getoption("timeout") or item.config.getini("timeout"))
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    limit_time(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Pytest itself has just cancelled it, since a test failed."""
    if isinstance(node, pytest.Item):
        limit_time(node)


def pytest_configure(config: pytest.Config) -> None:
    """Engines leave prepared weights; workers of one run share them."""
    with config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        config.stash[STDERR] = os.dup(2)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.mkdtemp(prefix="quire-tests-")
        os.environ["XDG_CACHE_HOME"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """The same random numbers in each run, whichever tests a process ran before."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


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


def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that goes on does not hold up the end for long."""
    faulthandler.dump_traceback_later(120.0, exit=True, file=config.stash[STDERR])


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
