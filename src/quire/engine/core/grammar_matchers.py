"""Matchers for the requests that need one, made beside the engine's loop.

Owns the way of a request from its arrival until its matcher is there, and the matcher until the
request has ended; it outlives preemptions. Requests that wait here hold nobody up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from quire.core.request import Request
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError, invalid_value
from quire.grammar.grammar_compiler import Compiler
from quire.grammar.grammar_matcher import Matcher

logger = logging.getLogger(__name__)

_NUM_THREADS = 2


class Grammars(Mapping[str, Matcher]):
    """The matchers that are ready, by request id; None as a compiler takes no such request."""

    def __init__(self, compiler: Compiler | None) -> None:
        self._compiler = compiler
        self._pool: ThreadPoolExecutor | None = None
        self._pending: dict[str, tuple[Request, Future[Matcher]]] = {}
        self._ready: dict[str, Matcher] = {}

    def __getitem__(self, request_id: str) -> Matcher:
        return self._ready[request_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ready)

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def num_pending(self) -> int:
        """Requests whose matcher is not ready yet."""
        return len(self._pending)

    def open(self, request: Request, wish: StructuredOutputs) -> None:
        """Begin to make a request's matcher. Raises InvalidRequestError if that cannot be."""
        if self._compiler is None:
            raise wish.wrong("this engine has no tokenizer to keep to it; leave it out")
        if request.request_id in self._pending or request.request_id in self._ready:
            raise invalid_value(
                "request_id",
                f"{request.request_id!r} is running already; give each request its own",
            )
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_NUM_THREADS, "quire-matcher")
        answer = request.token_ids[request.num_prompt_tokens :]
        attempt = self._pool.submit(_make, self._compiler, wish, answer)
        self._pending[request.request_id] = (request, attempt)

    def take_settled(self, patience: float) -> list[tuple[Request, Exception | None]]:
        """Requests whose matcher is ready, or why it cannot be.

        patience: seconds to wait where there would be none.
        """
        attempts = [attempt for _, attempt in self._pending.values()]
        if attempts and patience:
            wait(attempts, patience, FIRST_COMPLETED)
        settled = [(r, attempt) for r, attempt in self._pending.values() if attempt.done()]
        for request, attempt in settled:
            del self._pending[request.request_id]
            if attempt.exception() is None:
                self._ready[request.request_id] = attempt.result()
        return [(request, _failure(attempt)) for request, attempt in settled]

    def withdraw(self, request_ids: Iterable[str], *, begun: bool = True) -> list[str]:
        """Forget those of the requests that are not ready; returns them.

        begun: also those of whose answer the caller has a part, which another engine computed.
        """
        found = [
            request_id
            for request_id in request_ids
            if (pending := self._pending.get(request_id)) is not None
            and (begun or pending[0].num_output_tokens == 0)
        ]
        for request_id in found:
            self._pending.pop(request_id)[1].cancel()
        return found

    def close(self, request_id: str) -> None:
        """Forget an ended request's matcher, if it has one."""
        self._ready.pop(request_id, None)


def _make(compiler: Compiler, wish: StructuredOutputs, answer: list[int]) -> Matcher:
    """A matcher behind the answer so far, which another engine may have begun."""
    matcher = compiler.matcher(wish)
    matcher.follow(answer)
    return matcher


def _failure(attempt: Future[Matcher]) -> Exception | None:
    failure = attempt.exception()
    if failure is None or isinstance(failure, InvalidRequestError):
        return failure
    logger.error("a matcher could not be made", exc_info=failure)
    return RuntimeError("the form of this answer could not be compiled; send it again")
