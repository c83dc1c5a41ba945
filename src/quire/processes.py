"""Other processes of this machine, the threads of this one, and its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from quire.errors import ConfigError, OverloadedError

T = TypeVar("T")

INTERRUPTED = 130  # the exit status of a process that Ctrl-C ended

# Set when Ctrl-C ends this process: nothing is then waited for at exit.
interrupted = threading.Event()
_DETACHED = "quire-detached"  # the name of threads that are not waited for
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Around imports and a start, in a process that does nothing else: Ctrl-C ends it at once.

    An error instead would be lost in a destructor, and abort the process in code of C++. Without
    effect in threads, and where a program has its own handler. Afterwards Ctrl-C is an error again,
    also where `import quire` has made it end the command.
    """
    usual = signal.default_int_handler
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) not in (usual, signal.SIG_DFL):
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def check_process(maker: int, what: str) -> None:
    """Raise ConfigError if this is another process than the one with the id `maker`: a fork of it.

    Threads are not forked, but what waits for them is: OpenMP's next loop would never end. what:
    the sentence's subject and verb.
    """
    if os.getpid() != maker:
        raise forked_error(what)


def forked_error(what: str) -> ConfigError:
    """The error of what cannot work in a forked process, after the subject and verb `what`."""
    return ConfigError(
        f"{what} in the process that this one was forked from, and a fork has none of its "
        "threads; make an LLM in each process that uses one, and none before the fork, or "
        "start processes with multiprocessing.get_context('spawn')"
    )


def is_alive(pid: int) -> bool:
    """Whether some process that can be seen from here has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after a process's name, from its state on. Raises OSError."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def processor_ticks(pid: int) -> int:
    """Clock ticks of the processor that all threads of a process took. Raises OSError."""
    user, system = stat_fields(pid)[11:13]
    return int(user) + int(system)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even if no thread can run."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start_thread(work: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread:
    """Start a thread. Raises OverloadedError.

    daemon: it does not keep the process alive.
    """
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError:
        raise no_thread() from None
    return thread


def try_start(
    work: Callable[[], object], name: str, *, daemon: bool = True
) -> threading.Thread | None:
    """Start a thread that others can do without; None where the system has none left."""
    try:
        return start_thread(work, name, daemon=daemon)
    except OverloadedError:
        return None


def no_thread(problem: str = "no thread could be started") -> OverloadedError:
    """The error of work for which no thread or process can be started."""
    return OverloadedError(
        f"{problem}; try again later, or raise the limit of processes and threads (ulimit -u, or "
        "the container's)"
    )


def require_threads(count: int, what: str) -> None:
    """Raise OverloadedError unless this many threads can be started at once. what: takes them.

    For where libraries would start them: those in C and Rust print what failed, and abort. A fork
    tries it, so that this process does not keep the memory of their stacks and heaps; where there
    is none, it is a BlockingIOError.
    """
    count = min(count, 256)  # of which the fork's exit status can tell
    with warnings.catch_warnings(action="ignore"):  # of threads that a fork does not have
        child = os.fork()
    if child == 0:
        num_others = 0  # beside the main thread of the fork
        try:
            while num_others < count - 1:
                start_new_thread(signal.pause, ())
                num_others += 1
        finally:  # whatever ends it, such as Ctrl-C
            os._exit(num_others)
    num_threads = 1 + max(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if num_threads < count:
        text = f"{what} takes at least {count + 1} threads, and can have {num_threads + 1}"
        raise no_thread(text)


async def in_detached_thread(work: Callable[[], T]) -> T:
    """The result of work, such as a download, that may be left behind when this process ends.

    Raises OverloadedError where no thread can be started.
    """
    import asyncio  # takes a while
    from concurrent.futures import Future

    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # a caller that stops waiting cannot break it

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as failure:  # raised where it is awaited
            done.set_exception(failure)

    start_thread(run, _DETACHED)
    return await asyncio.wrap_future(done)


def end_with(status: int) -> int:
    """The exit status; where a detached thread still runs, this process ends here.

    Python would wait for the threads which that one has started.
    """
    if any(thread.name == _DETACHED for thread in threading.enumerate()):
        import logging

        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
