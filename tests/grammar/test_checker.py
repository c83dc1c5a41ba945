from __future__ import annotations

import threading

import pytest

from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError, OverloadedError
from quire.grammar.checker import GrammarChecker
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.matcher import Matcher


class CountingCompiler:
    """Takes what the real one takes; "slow" waits for `go`."""

    def __init__(self, inner: GrammarCompiler) -> None:
        self.inner = inner
        self.asked: list[str] = []
        self.go = threading.Event()

    def matcher(self, wish: StructuredOutputs) -> Matcher:
        self.asked.append(wish.text)
        if wish.text.startswith("slow"):
            self.go.wait(10)
        return self.inner.matcher(wish)


@pytest.fixture
def compiler(byte_compiler: GrammarCompiler) -> CountingCompiler:
    return CountingCompiler(byte_compiler)


def test_a_form_is_compiled_once_good_or_bad(compiler: CountingCompiler) -> None:
    checker = GrammarChecker(compiler)
    for _ in range(3):
        checker.check(StructuredOutputs(regex="ab"))
        with pytest.raises(InvalidRequestError) as caught:
            checker.check(StructuredOutputs(regex="(", field="guided_regex"))
        assert str(caught.value) == "guided_regex: unclosed group; mend it"
        assert caught.value.param == "guided_regex"
    with pytest.raises(InvalidRequestError, match=r"^structured_outputs\.regex: unclosed"):
        checker.check(StructuredOutputs(regex="("))
    assert compiler.asked == ["ab", "("]


def test_what_was_found_is_kept_within_bounds(compiler: CountingCompiler) -> None:
    checker = GrammarChecker(compiler, cache_bytes=1200)  # two entries of little text
    for pattern in ("a", "b", "a", "c", "a", "b"):
        checker.check(StructuredOutputs(regex=pattern))
    assert compiler.asked == ["a", "b", "c", "b"]


def test_a_form_that_takes_too_long_is_refused_and_stays_so(compiler: CountingCompiler) -> None:
    checker = GrammarChecker(compiler, seconds=0.05)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=r"regex: it takes more than 0.05 s"):
            checker.check(StructuredOutputs(regex="slow"))
    assert compiler.asked == ["slow"]
    compiler.go.set()


def test_a_form_that_gets_no_turn_may_come_again(compiler: CountingCompiler) -> None:
    checker = GrammarChecker(compiler, seconds=0.05)
    for pattern in ("slow1", "slow2"):
        with pytest.raises(InvalidRequestError):
            checker.check(StructuredOutputs(regex=pattern))
    with pytest.raises(OverloadedError, match="too many"):
        checker.check(StructuredOutputs(regex="a"))
    compiler.go.set()
    checker.check(StructuredOutputs(regex="a"))
