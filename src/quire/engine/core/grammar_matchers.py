"""Grammar matchers of the requests with structured outputs, compiled in threads beside the loop.

Owns a request from its arrival until its grammar is compiled, and the matcher until the request
has ended; matchers outlive preemptions. Requests that wait here delay no others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait

from quire.background import LazyThreads
from quire.core.request import Request
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import Compiler
from quire.grammar.grammar_matcher import AnyMatcher

logger = logging.getLogger(__name__)

_COMPILE_THREADS = 2


class GrammarMatchers:
    """Grammars from a request's arrival to its end. ready: the compiled matchers by request id.

    compiler: None refuses every request with structured outputs.
    """

    def __init__(self, compiler: Compiler | None) -> None:
        self._compiler = compiler
        self._pool: LazyThreads | None = None
        self._pending: dict[str, tuple[Request, Future[AnyMatcher]]] = {}
        self.ready: dict[str, AnyMatcher] = {}

    @property
    def num_pending(self) -> int:
        """The number of requests whose grammar is still being compiled."""
        return len(self._pending)

    def start_compiling(self, request: Request, structured_outputs: StructuredOutputs) -> None:
        """Start to compile a request's grammar. Raises InvalidRequestError or OverloadedError."""
        if self._compiler is None:
            raise structured_outputs.invalid(
                "it needs a tokenizer, which this engine does not have; leave it out"
            )
        if self._pool is None:
            self._pool = LazyThreads(_COMPILE_THREADS, "quire-grammar")
        output_token_ids = request.token_ids[request.num_prompt_tokens :]
        future = self._pool.submit(
            _new_matcher, self._compiler, structured_outputs, output_token_ids
        )
        self._pending[request.request_id] = (request, future)

    def take_compiled(self, timeout: float) -> list[tuple[Request, Exception | None]]:
        """Requests whose compilation has ended since the last call, with the error if it failed.

        timeout: seconds to wait for the first one.
        """
        futures = [future for _, future in self._pending.values()]
        if futures and timeout:
            wait(futures, timeout, FIRST_COMPLETED)
        done = [(request, future) for request, future in self._pending.values() if future.done()]
        for request, future in done:
            del self._pending[request.request_id]
            if future.exception() is None:
                self.ready[request.request_id] = future.result()
        return [(request, _failure(future)) for request, future in done]

    def cancel(self, request_ids: Iterable[str], *, include_started: bool = True) -> list[Request]:
        """Drop and return those of the requests whose grammars are still being compiled.

        include_started: also requests that another engine process has begun to answer.
        """
        found = [
            request_id
            for request_id in dict.fromkeys(request_ids)
            if (pending := self._pending.get(request_id)) is not None
            and (include_started or pending[0].num_output_tokens == 0)
        ]
        dropped = [self._pending.pop(request_id) for request_id in found]
        for _, future in dropped:
            future.cancel()
        return [request for request, _ in dropped]

    def clear(self) -> None:
        """Drop all matchers, and the requests whose grammar is being compiled."""
        self._pending.clear()
        self.ready.clear()

    def remove(self, request_id: str) -> None:
        """Drop the matcher of a request that has ended, if it has one."""
        self.ready.pop(request_id, None)


def _new_matcher(
    compiler: Compiler, structured_outputs: StructuredOutputs, output_token_ids: list[int]
) -> AnyMatcher:
    """A matcher that has accepted the output tokens so far, which another engine may have drawn."""
    matcher = compiler.matcher(structured_outputs)
    matcher.advance_to(output_token_ids)
    return matcher


def _failure(future: Future[AnyMatcher]) -> Exception | None:
    failure = future.exception()
    if failure is None or isinstance(failure, InvalidRequestError):
        return failure
    logger.error("a grammar could not be compiled", exc_info=failure)
    return RuntimeError("the grammar of this request could not be compiled; send it again")
