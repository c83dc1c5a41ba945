"""Requests whose grammar is being compiled."""

from __future__ import annotations

import threading
from typing import Any, cast

from quire.core.messages import AddRequest
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.core.grammar_matchers import GrammarMatchers
from quire.grammar.grammar_compiler import Compiler


class Blocked:
    """A compiler that does not end before it may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def matcher(self, structured_outputs: StructuredOutputs) -> Any:
        self.may_end.wait(60)  # or the test has failed
        raise AssertionError(structured_outputs)


def test_an_id_that_is_cancelled_twice_in_one_message_ends_once() -> None:
    compiler, outputs = Blocked(), StructuredOutputs(regex="a+")
    grammars = GrammarMatchers(cast(Compiler, compiler))
    sampling = SamplingParams(structured_outputs=outputs)
    message = AddRequest(request_id="a", prompt_token_ids=[1], sampling=sampling)
    request = Request(message, arrival_number=0, max_model_len=9)
    grammars.start_compiling(request, outputs)
    assert grammars.cancel(["a", "unknown", "a"]) == [request]
    assert grammars.num_pending == 0
    compiler.may_end.set()
