"""Whether a form can be compiled, found out in the front before the engine hears of it.

Owns the memory of what was found, and the turns of those who ask.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import OverloadedError
from quire.grammar.byte_bounded_cache import ByteBoundedCache
from quire.grammar.grammar_compiler import Compiler, problem_with

CHECK_SECONDS = 2.0  # most forms take milliseconds; nearly all that pass the bounds, a second
DEFAULT_CACHE_BYTES = 4 << 20
_ENTRY_BYTES = 512  # of an entry, besides the form's text


class Judge(Protocol):
    """Who knows what is wrong with a form."""

    def problem(self, wish: StructuredOutputs) -> str:
        """What is wrong with it; empty if nothing is. Raises TimeoutError or OverloadedError."""

    def close(self) -> None:
        """Let go of what it holds."""


class Here:
    """Compiles forms in the caller's thread, however long it takes: for callers who wait anyway."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def problem(self, wish: StructuredOutputs) -> str:
        """What is wrong with it; empty if nothing is."""
        return problem_with(wish, self._compiler)

    def close(self) -> None:
        """There is nothing to let go of."""


class GrammarChecker:
    """Tells whether a form is taken; knows the answer for those it was asked before.

    seconds: that the judge gives a form, and a caller its turn.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        seconds: float = CHECK_SECONDS,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._judge = judge
        self._seconds = seconds
        self._turn = threading.Lock()
        # on event loops callers take turns there; then one thread does, which has no other work
        self._line = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "quire-forms")
        self._found: ByteBoundedCache[tuple[str, str, str | None], str] = ByteBoundedCache(
            cache_bytes
        )

    def check(self, wish: StructuredOutputs) -> None:
        """Raises InvalidRequestError that names the wish's field and what is wrong with it.

        OverloadedError: so many others are being compiled that it did not get its turn. It blocks
        its caller: on an event loop, see `check_beside`.
        """
        key = wish.key
        problem = self._found.get(key)
        if problem is None:
            problem = self._problem(wish)
            self._found.put(key, problem, _ENTRY_BYTES + len(wish.text))
        if problem:
            raise wish.wrong_somewhere(problem)

    async def check_beside(self, wish: StructuredOutputs) -> None:
        """The same beside an event loop. A form that is known waits for nobody."""
        if self._found.get(wish.key) is not None:
            self.check(wish)
            return
        try:
            async with asyncio.timeout(self._seconds):
                await self._line.acquire()
        except TimeoutError:
            raise _no_turn(wish) from None
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self.check, wish)
        finally:
            self._line.release()

    def close(self) -> None:
        """Let go of the judge; waits for a form that is being compiled."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._turn:
            self._judge.close()

    def _problem(self, wish: StructuredOutputs) -> str:
        """What is wrong with it, or nothing."""
        if not self._turn.acquire(timeout=self._seconds):
            raise _no_turn(wish)
        try:
            return self._judge.problem(wish)
        except TimeoutError:
            return f"it takes more than {self._seconds:g} s to compile; make it simpler"
        finally:
            self._turn.release()


def _no_turn(wish: StructuredOutputs) -> OverloadedError:
    text = f"{wish.name}: too many forms are being compiled; send it again later"
    return OverloadedError(text)
