"""Checks in the frontend, before the engine gets a request, that its grammar can be compiled.

Owns the cache of results and the order of the callers.
"""

from __future__ import annotations

import math
import queue
from functools import partial
from typing import Protocol

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import OverloadedError
from quire.fair_queue import FairExecutor
from quire.grammar.byte_bounded_cache import ByteBoundedCache
from quire.grammar.grammar_compiler import Compiler, compile_problem

TRIAL_SECONDS = 0.25  # while others wait: what takes longer is compiled after them, anew
CHECK_SECONDS = 2.0  # most grammars take milliseconds, nearly all within the limits a second
WAIT_SECONDS = 10.0  # for those of other callers: as many as a few that take the limit
NUM_VALIDATORS = 2  # in a server; one caller has at most all but one of them
SECONDS_PER_BYTE = 2e-5  # of a long schema; an estimate, to compile short ones first
DEFAULT_CACHE_BYTES = 4 << 20
_ENTRY_BYTES = 512  # of an entry, besides the grammar's text


class GrammarValidator(Protocol):
    """Finds out whether structured outputs can be compiled."""

    def find_problem(self, structured_outputs: StructuredOutputs, seconds: float = math.inf) -> str:
        """Why they cannot be compiled; empty if they can.

        Raises TimeoutError after this many seconds, or OverloadedError.
        """

    def close(self) -> None:
        """Release the validator's resources."""


class InProcessValidator:
    """Compiles in the caller's thread without a time limit: for callers that are trusted."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def find_problem(
        self,
        structured_outputs: StructuredOutputs,
        seconds: float = math.inf,  # noqa: ARG002
    ) -> str:
        """Why they cannot be compiled; empty if they can. A time limit has no effect."""
        return compile_problem(structured_outputs, self._compiler)

    def close(self) -> None:
        """Do nothing: the validator holds no resources."""


class GrammarChecker:
    """Validates structured outputs and caches the results.

    validators: as many grammars are compiled at once, fairly among callers, so that one with costly
    grammars in a loop delays nobody else's for long. seconds: the time limit for one compilation;
    wait_seconds: for waiting for others.
    """

    def __init__(
        self,
        *validators: GrammarValidator,
        seconds: float = CHECK_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self._seconds = seconds
        self._wait_seconds = wait_seconds
        self._num_validators = num = len(validators)
        self._free: queue.LifoQueue[GrammarValidator] = queue.LifoQueue()  # the last used first
        for validator in validators:
            self._free.put(validator)
        most_each = max(1, num - 1)
        self._threads = FairExecutor(num, "quire-grammar-check", most_each=most_each)
        self._problems: ByteBoundedCache[tuple[str, str, str | None], str] = ByteBoundedCache(
            cache_bytes
        )

    def check(self, structured_outputs: StructuredOutputs) -> None:
        """Raise InvalidRequestError, naming field and reason, if they cannot be compiled.

        Raises OverloadedError if too many others are being compiled. Blocks the caller; on an event
        loop use `check_async`.
        """
        _raise(structured_outputs, self._problem(structured_outputs, self._seconds))

    async def check_async(self, structured_outputs: StructuredOutputs, caller: str = "") -> None:
        """`check` for an event loop: compiles in a thread; a cached result is used at once."""
        problem = self._problems.get(structured_outputs.key)
        if problem is None:
            try:
                problem = await self._problem_in_turn(structured_outputs, caller)
            except TimeoutError:
                raise _overloaded(structured_outputs) from None
        _raise(structured_outputs, problem)

    async def _problem_in_turn(self, structured_outputs: StructuredOutputs, caller: str) -> str:
        """`_problem` when it is their turn, and after the quick ones if they took too long."""
        run, wait = self._threads.run, self._wait_seconds
        expected = SECONDS_PER_BYTE * len(structured_outputs.text)
        trial = partial(self._try, structured_outputs)
        if (problem := await run(caller, trial, wait, expected)) is None:
            work = partial(self._problem, structured_outputs, self._seconds)
            problem = await run(caller, work, wait, max(expected, self._seconds))
        return problem

    def close(self) -> None:
        """Close the validators, after the compilations in progress; a second call does nothing."""
        self._threads.close()
        num_open, self._num_validators = self._num_validators, 0
        for _ in range(num_open):
            self._free.get().close()

    def _try(self, structured_outputs: StructuredOutputs) -> str | None:
        """`_problem`; None if others wait and compiling takes long."""
        seconds = self._seconds
        if self._threads.is_awaited:
            seconds = min(TRIAL_SECONDS, seconds)
        try:
            return self._problem(structured_outputs, seconds)
        except TimeoutError:
            return None

    def _problem(self, structured_outputs: StructuredOutputs, seconds: float) -> str:
        """Why they cannot be compiled; empty if they can.

        Raises TimeoutError after fewer seconds than a compilation may take.
        """
        problem = self._problems.get(structured_outputs.key)
        if problem is not None:
            return problem
        try:
            problem = self._compile(structured_outputs, seconds)
        except TimeoutError:
            if seconds < self._seconds:
                raise
            problem = f"it takes more than {seconds:g} s to compile; make it simpler"
        size = _ENTRY_BYTES + len(structured_outputs.text)
        self._problems.put(structured_outputs.key, problem, size)
        return problem

    def _compile(self, structured_outputs: StructuredOutputs, seconds: float) -> str:
        try:
            validator = self._free.get(timeout=self._wait_seconds)
        except queue.Empty:
            raise _overloaded(structured_outputs) from None
        try:
            return validator.find_problem(structured_outputs, seconds)
        finally:
            self._free.put(validator)


def _raise(structured_outputs: StructuredOutputs, problem: str) -> None:
    if problem:
        raise structured_outputs.invalid_at_line(problem)


def _overloaded(structured_outputs: StructuredOutputs) -> OverloadedError:
    text = f"{structured_outputs.name}: too many grammars are being compiled; send it again later"
    return OverloadedError(text)
