"""Requests whose grammar is being compiled."""

from __future__ import annotations

import threading
from typing import Any, cast

from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.core.grammar_matchers import GrammarMatchers
from quire.errors import InvalidRequestError
from quire.grammar.grammar_compiler import Compiler

OUTPUTS = StructuredOutputs(regex="a+")


class Blocked:
    """A compiler that does not end before it may. num_asked: grammars that it was asked for."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.num_asked = 0

    def matcher(self, structured_outputs: StructuredOutputs) -> Any:
        self.num_asked += 1
        self.may_end.wait(60)  # or the test has failed
        raise InvalidRequestError(repr(structured_outputs))


def started(grammars: GrammarMatchers, request_id: str) -> Request:
    """A request whose grammar is being compiled from now on."""
    sampling = SamplingParams(structured_outputs=OUTPUTS)
    message = AddRequest(request_id=request_id, prompt_token_ids=[1], sampling=sampling)
    request = Request(message, arrival_number=0, max_model_len=9)
    grammars.start_compiling(request, OUTPUTS)
    return request


def test_an_id_that_is_cancelled_twice_in_one_message_ends_once() -> None:
    compiler = Blocked()
    grammars = GrammarMatchers(cast(Compiler, compiler))
    request = started(grammars, "a")
    assert grammars.cancel(["a", "unknown", "a"]) == [request]
    assert grammars.num_pending == 0
    compiler.may_end.set()


def test_grammars_of_dropped_requests_are_not_compiled() -> None:
    """After an interrupted call the next one's would wait for them."""
    compiler = Blocked()
    grammars = GrammarMatchers(cast(Compiler, compiler))
    for name in "abcdefgh":
        started(grammars, name)
    grammars.clear()
    assert grammars.num_pending == 0
    started(grammars, "later")
    compiler.may_end.set()
    ((request, _),) = grammars.take_compiled(timeout=60)
    assert request.request_id == "later"
    assert compiler.num_asked <= 3  # one in each thread when they were dropped
