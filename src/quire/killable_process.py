"""KillableProcess: work in a child process that is killed when it takes too long.

For libraries that cannot be interrupted inside a thread.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from quire.background import CallerGoneError, poll_intervals
from quire.errors import OverloadedError

if TYPE_CHECKING:
    from quire.framed_child import FramedChild

logger = logging.getLogger(__name__)


class ChildDiedError(Exception):
    """The child has died of what it was asked, such as of a lack of memory."""


class KillableProcess:
    """A child process that answers one caller at a time.

    program: arguments of the interpreter for a program that calls `serve_frames`. name: for
    messages. first: what the program begins with; called when a process is started, which is before
    the first question. not_now: the message of errors that say nothing about what was asked.
    """

    def __init__(
        self, program: list[str], name: str, first: Callable[[], bytes], not_now: str
    ) -> None:
        self._program, self._name = program, name
        self._first = first
        self._not_now = not_now
        self._child: FramedChild | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        return None if self._child is None else self._child.pid

    def ask(self, frame: bytes, seconds: float, wall_seconds: float) -> bytes:
        """The child's answer.

        seconds: of the child's processor time. Raises TimeoutError after them; OverloadedError if
        it had less in wall_seconds, if no child can be started or it was killed from outside;
        ChildDiedError; and CallerGoneError as soon as nobody waits for the answer. After
        TimeoutError, ChildDiedError and CallerGoneError another child is there or starts, if one
        can be started; after any other error the next question starts it.
        """
        child = self._ready_child()
        try:
            return self._answer(child, frame, seconds, wall_seconds)
        except (EOFError, BrokenPipeError):
            status = child.wait()
            self.close()
            if status == -signal.SIGKILL:
                raise OverloadedError(self._not_now) from None
            self._restart()
            if status == -signal.SIGPROF:  # its own timer, see end_self_after
                raise TimeoutError from None
            raise ChildDiedError from None
        except (TimeoutError, CallerGoneError):
            self._restart()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the child; the next question starts another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def __del__(self) -> None:
        self.close()

    def _restart(self) -> None:
        """Replace a lost child, and wait until it has started, unless the caller has gone."""
        self.close()
        with suppress(OverloadedError, CallerGoneError):
            self._ready_child()

    def _answer(
        self, child: FramedChild, frame: bytes, seconds: float, wall_seconds: float
    ) -> bytes:
        try:
            child.send(frame, wall_seconds)
        except TimeoutError:  # it does not even read
            raise OverloadedError(self._not_now) from None
        left, end = seconds, child.worked_seconds() + seconds
        for most in poll_intervals(wall_seconds):
            if child.has_answered(min(left, most)):
                return child.receive()
            if (left := end - child.worked_seconds()) <= 0.0:
                raise TimeoutError
        raise OverloadedError(self._not_now)

    def _ready_child(self) -> FramedChild:
        """The child, once it has started. It goes on starting if the caller leaves before."""
        child = self._child or self._open()
        try:
            child.make_ready()
        except CallerGoneError:
            raise
        except (TimeoutError, EOFError):
            self.close()
            logger.error("the %s could not be started", self._name)
            raise OverloadedError(self._not_now) from None
        except BaseException:  # it may have been read in part
            self.close()
            raise
        return child

    def _open(self) -> FramedChild:
        from quire.framed_child import FramedChild  # most processes never need one

        first = self._first()
        try:
            child = self._child = FramedChild(self._program, first)
        except OSError as error:  # no memory, no file descriptor, no process
            logger.error("the %s could not be started: %s", self._name, error.strerror)
            raise OverloadedError(self._not_now) from None
        return child
