"""Checks in the front that structured outputs can be compiled, before the engine gets the request.

Owns the cache of results and the order of the callers.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import OverloadedError
from quire.grammar.byte_bounded_cache import ByteBoundedCache
from quire.grammar.grammar_compiler import Compiler, compile_problem

CHECK_SECONDS = 2.0  # most grammars take milliseconds, nearly all within the limits a second
DEFAULT_CACHE_BYTES = 4 << 20
_ENTRY_BYTES = 512  # of an entry, besides the grammar's text


class GrammarValidator(Protocol):
    """Finds out whether structured outputs can be compiled."""

    def find_problem(self, structured_outputs: StructuredOutputs) -> str:
        """Why they cannot be compiled; empty if they can.

        Raises TimeoutError or OverloadedError.
        """

    def close(self) -> None:
        """Release the validator's resources."""


class InProcessValidator:
    """Compiles in the caller's thread without a time limit: for callers that are trusted."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def find_problem(self, structured_outputs: StructuredOutputs) -> str:
        """Why they cannot be compiled; empty if they can."""
        return compile_problem(structured_outputs, self._compiler)

    def close(self) -> None:
        """Do nothing: the validator holds no resources."""


class GrammarChecker:
    """Validates structured outputs and caches the results.

    seconds: the time limit for one compilation, and for waiting for earlier ones.
    """

    def __init__(
        self,
        validator: GrammarValidator,
        *,
        seconds: float = CHECK_SECONDS,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._validator = validator
        self._seconds = seconds
        self._lock = threading.Lock()
        # callers on an event loop queue there, and one thread compiles for them
        self._async_lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "quire-grammar-check")
        self._problems: ByteBoundedCache[tuple[str, str, str | None], str] = ByteBoundedCache(
            cache_bytes
        )

    def check(self, structured_outputs: StructuredOutputs) -> None:
        """Raise InvalidRequestError, naming field and reason, if they cannot be compiled.

        Raises OverloadedError if too many others are being compiled. Blocks the caller; on an event
        loop use `check_async`.
        """
        key = structured_outputs.key
        problem = self._problems.get(key)
        if problem is None:
            problem = self._problem(structured_outputs)
            self._problems.put(key, problem, _ENTRY_BYTES + len(structured_outputs.text))
        if problem:
            raise structured_outputs.invalid_at_line(problem)

    async def check_async(self, structured_outputs: StructuredOutputs) -> None:
        """`check` for an event loop: compiles in a thread; a cached result is used at once."""
        if self._problems.get(structured_outputs.key) is not None:
            self.check(structured_outputs)
            return
        try:
            async with asyncio.timeout(self._seconds):
                await self._async_lock.acquire()
        except TimeoutError:
            raise _overloaded(structured_outputs) from None
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self.check, structured_outputs)
        finally:
            self._async_lock.release()

    def close(self) -> None:
        """Close the validator, after the compilation in progress."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._validator.close()

    def _problem(self, structured_outputs: StructuredOutputs) -> str:
        """Why they cannot be compiled; empty if they can."""
        if not self._lock.acquire(timeout=self._seconds):
            raise _overloaded(structured_outputs)
        try:
            return self._validator.find_problem(structured_outputs)
        except TimeoutError:
            return f"it takes more than {self._seconds:g} s to compile; make it simpler"
        finally:
            self._lock.release()


def _overloaded(structured_outputs: StructuredOutputs) -> OverloadedError:
    text = f"{structured_outputs.name}: too many grammars are being compiled; send it again later"
    return OverloadedError(text)
