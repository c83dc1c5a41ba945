"""Whether a form can be compiled, found out in the front before the engine hears of it.

Owns the limit on time and the memory of what was found. It blocks its caller: keep it off event
loops.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError, OverloadedError
from quire.grammar.cache import ByteBoundedCache
from quire.grammar.compiler import Compiler

CHECK_SECONDS = 2.0  # most forms take milliseconds, the worst that pass the bounds a second
DEFAULT_CACHE_BYTES = 4 << 20
_ENTRY_BYTES = 512  # of an entry, besides the form's text
_NUM_THREADS = 2  # the library lets go of the interpreter while it compiles


class GrammarChecker:
    """Tells whether the compiler takes a form; knows the answer for those it was asked before."""

    def __init__(
        self,
        compiler: Compiler,
        *,
        seconds: float = CHECK_SECONDS,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._compiler = compiler
        self._seconds = seconds
        self._pool: ThreadPoolExecutor | None = None
        self._found: ByteBoundedCache[tuple[str, str], str] = ByteBoundedCache(cache_bytes)

    def check(self, wish: StructuredOutputs) -> None:
        """Raises InvalidRequestError that names the wish's field and what is wrong with it.

        OverloadedError: so many others are being compiled that it did not get its turn.
        """
        key = (wish.kind, wish.text)
        problem = self._found.get(key)
        if problem is None:
            problem = self._problem(wish)
            self._found.put(key, problem, _ENTRY_BYTES + len(wish.text))
        if problem:
            raise wish.wrong(problem)

    def _problem(self, wish: StructuredOutputs) -> str:
        """What is wrong with it, or nothing."""
        attempt = self._start(wish)
        try:
            attempt.result(self._seconds)
        except InvalidRequestError as error:
            return str(error).removeprefix(f"{wish.name}: ")
        except FutureTimeoutError:
            if attempt.cancel():
                raise OverloadedError(
                    f"{wish.name}: too many forms are being compiled; send it again later"
                ) from None
            return f"it takes more than {self._seconds:g} s to compile; make it simpler"
        return ""

    def _start(self, wish: StructuredOutputs) -> Future[object]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_NUM_THREADS, "quire-grammar")
        return self._pool.submit(self._compiler.matcher, wish)
