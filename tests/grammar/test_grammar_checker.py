from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from quire import fair_queue
from quire.core.structured_outputs import StructuredOutputs
from quire.errors import InvalidRequestError, OverloadedError
from quire.framed_child import NICENESS
from quire.grammar.grammar_checker import (
    CHECK_SECONDS,
    TRIAL_SECONDS,
    GrammarChecker,
    InProcessValidator,
)
from quire.grammar.grammar_compiler import GrammarCompiler
from quire.grammar.grammar_matcher import Matcher
from quire.grammar.grammar_subprocess import TOO_MUCH, GrammarSubprocess
from quire.grammar.vocabulary import Vocabulary
from quire.tokenizer.tokenizer import Tokenizer


class CountingCompiler:
    """Takes what the real one takes; "slow" waits for `go`."""

    def __init__(self, inner: GrammarCompiler) -> None:
        self.inner = inner
        self.asked: list[str] = []
        self.go = threading.Event()

    def matcher(self, constraint: StructuredOutputs) -> Matcher:
        self.asked.append(constraint.text)
        if constraint.text.startswith("slow"):
            self.go.wait(10)
        return self.inner.matcher(constraint)


@pytest.fixture
def compiler(byte_compiler: GrammarCompiler) -> CountingCompiler:
    return CountingCompiler(byte_compiler)


def test_a_grammar_is_compiled_once_good_or_bad(compiler: CountingCompiler) -> None:
    checker = GrammarChecker(InProcessValidator(compiler))
    for _ in range(3):
        checker.check(StructuredOutputs(regex="ab"))
        with pytest.raises(InvalidRequestError) as caught:
            checker.check(StructuredOutputs(regex="(", field="guided_regex"))
        assert str(caught.value) == "guided_regex: unclosed group; correct it"
        assert caught.value.param == "guided_regex"
    with pytest.raises(InvalidRequestError, match=r"^structured_outputs\.regex: unclosed"):
        checker.check(StructuredOutputs(regex="("))
    assert compiler.asked == ["ab", "("]


def test_a_grammar_of_several_fields_names_the_one(byte_compiler: GrammarCompiler) -> None:
    checker = GrammarChecker(InProcessValidator(byte_compiler))
    for keyword in ('"not": {}', '"oneOf": [{"type": "object"}, {"minProperties": 0}]'):
        text = 'start: a b\na: %json {"type": "object"}\nb: %json {' + keyword + "}\n"
        constraint = StructuredOutputs(
            grammar=text, field="tools", fields_of_lines={2: "x", 3: "y"}
        )
        with pytest.raises(InvalidRequestError, match=r"^y: (keywords|oneOf)") as caught:
            checker.check(constraint)
        assert caught.value.param == "y"


def test_a_grammar_around_a_schema_names_no_line_of_its_own(byte_compiler: GrammarCompiler) -> None:
    checker = GrammarChecker(InProcessValidator(byte_compiler))
    text = 'start: a\na: %json {"uniqueItems": true}\n'
    around = StructuredOutputs(grammar=text, field="response_format", fields_of_lines={})
    with pytest.raises(InvalidRequestError, match=r"^response_format: keywords that cannot"):
        checker.check(around)
    with pytest.raises(InvalidRequestError, match=r"^structured_outputs.grammar: at 2\(\d+\): "):
        checker.check(StructuredOutputs(grammar=text))


def test_stored_results_are_bounded(compiler: CountingCompiler) -> None:
    # two entries of little text
    checker = GrammarChecker(InProcessValidator(compiler), cache_bytes=1200)
    for pattern in ("a", "b", "a", "c", "a", "b"):
        checker.check(StructuredOutputs(regex=pattern))
    assert compiler.asked == ["a", "b", "c", "b"]


def test_a_grammar_that_waited_too_long_may_be_sent_again(compiler: CountingCompiler) -> None:
    checker = GrammarChecker(InProcessValidator(compiler), wait_seconds=0.05)
    slow = threading.Thread(target=checker.check, args=[StructuredOutputs(regex="slow")])
    slow.start()
    while not compiler.asked:
        time.sleep(0.001)
    with pytest.raises(OverloadedError, match="too many"):
        checker.check(StructuredOutputs(regex="a"))
    compiler.go.set()
    slow.join()
    checker.check(StructuredOutputs(regex="a"))


def test_slow_grammars_hold_up_neither_known_ones_nor_helpers(compiler: CountingCompiler) -> None:
    """On an event loop whose default threads have other work."""
    checker = GrammarChecker(InProcessValidator(compiler), wait_seconds=0.05)

    async def crowd() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await checker.check_async(StructuredOutputs(regex="a"))
        slow = asyncio.create_task(checker.check_async(StructuredOutputs(regex="slow")))
        others = [
            asyncio.create_task(checker.check_async(StructuredOutputs(regex=f"b{i}")))
            for i in range(5)
        ]
        while "slow" not in compiler.asked:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(lambda: 1) == 1
        await checker.check_async(StructuredOutputs(regex="a"))
        refused = await asyncio.gather(*others, return_exceptions=True)
        assert [type(error) for error in refused] == [OverloadedError] * 5
        compiler.go.set()
        await slow
        with pytest.raises(InvalidRequestError):
            await checker.check_async(StructuredOutputs(regex="("))
        await checker.check_async(StructuredOutputs(regex="b0"))

    asyncio.run(crowd())
    checker.close()


class TimedValidator:
    """Takes as many seconds of a clock as the regular expression's digits say."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def find_problem(self, constraint: StructuredOutputs, seconds: float) -> str:
        needed = float(constraint.text.strip("ab"))
        self.now += min(needed, seconds)
        if needed > seconds:
            raise TimeoutError
        return ""

    def close(self) -> None: ...


@pytest.mark.parametrize("caller", ["same", "other"])
def test_a_quick_grammar_waits_for_no_more_than_the_trials_of_costly_ones(
    monkeypatch: pytest.MonkeyPatch, caller: str
) -> None:
    validator = TimedValidator()
    monkeypatch.setattr(fair_queue, "time", validator)
    checker, ends = GrammarChecker(validator), dict[str, float]()

    async def one(regex: str, caller: str) -> None:
        with suppress(InvalidRequestError):
            await checker.check_async(StructuredOutputs(regex=regex), caller)
        ends[regex] = validator.now

    async def crowd() -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(9):
                name = caller if caller == "same" else f"{caller}{i}"
                group.create_task(one(f"{'a' * i}9", name))
            await asyncio.sleep(0)
            group.create_task(one("b0.01", "same"))

    asyncio.run(crowd())
    checker.close()
    # the first began when nobody waited
    assert ends["b0.01"] < CHECK_SECONDS + 8 * TRIAL_SECONDS + 0.1
    assert max(ends.values()) < 9 * (CHECK_SECONDS + TRIAL_SECONDS) + 0.1


# the library's own limits do not bound the work for a conjunction of many large patterns
ENDLESS = {"allOf": [{"type": "string", "pattern": f"(.*{i}.{{99}})+"} for i in range(60)]}


@pytest.fixture
def subprocess_validator(
    byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GrammarSubprocess]:
    """One that waits long for its process: here the machine may well be busy with others."""
    monkeypatch.setattr("quire.grammar.grammar_subprocess.BUSY_FACTOR", 200)
    size, eos = byte_tokenizer.vocab_size, byte_tokenizer.eos_token_id
    assert eos is not None
    judge = GrammarSubprocess(lambda: Vocabulary(byte_tokenizer, size, [eos]), seconds=0.4)
    yield judge
    judge.close()


def test_a_grammar_that_takes_too_long_costs_its_process_and_nothing_else(
    subprocess_validator: GrammarSubprocess,
) -> None:
    checker = GrammarChecker(subprocess_validator, seconds=0.4)
    checker.check(StructuredOutputs(regex="ab"))
    first, begin = subprocess_validator.pid, time.process_time()
    assert first is not None
    for _ in range(2):  # the second time it is known
        with pytest.raises(InvalidRequestError, match=r"json: it takes more than 0.4 s"):
            checker.check(StructuredOutputs(json=ENDLESS))
    assert time.process_time() - begin < 0.3
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    checker.check(StructuredOutputs(regex="abc"))
    assert subprocess_validator.pid not in (None, first)
    with pytest.raises(InvalidRequestError, match=r"regex: unclosed group"):
        checker.check(StructuredOutputs(regex="("))


def test_a_starved_process_is_no_verdict_on_the_grammar(
    subprocess_validator: GrammarSubprocess, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = GrammarChecker(subprocess_validator, seconds=0.4)
    checker.check(StructuredOutputs(regex="a"))
    assert subprocess_validator.pid is not None
    os.kill(subprocess_validator.pid, signal.SIGSTOP)  # a machine that is busy with others
    with monkeypatch.context() as patch:
        patch.setattr("quire.grammar.grammar_subprocess.BUSY_FACTOR", 2)
        with pytest.raises(OverloadedError, match="at the moment"):
            checker.check(StructuredOutputs(regex="ab"))
    checker.check(StructuredOutputs(regex="ab"))


def test_a_process_that_dies_is_replaced(subprocess_validator: GrammarSubprocess) -> None:
    assert subprocess_validator.find_problem(StructuredOutputs(regex="a")) == ""
    assert subprocess_validator.pid is not None
    os.kill(subprocess_validator.pid, signal.SIGKILL)  # from outside
    with pytest.raises(OverloadedError, match="at the moment"):
        subprocess_validator.find_problem(StructuredOutputs(regex="a"))
    assert subprocess_validator.find_problem(StructuredOutputs(regex="a")) == ""
    os.kill(subprocess_validator.pid, signal.SIGABRT)  # as when memory runs out
    assert subprocess_validator.find_problem(StructuredOutputs(regex="a")) == TOO_MUCH
    os.kill(subprocess_validator.pid, signal.SIGPROF)  # its own timer
    with pytest.raises(TimeoutError):
        subprocess_validator.find_problem(StructuredOutputs(regex="a"))
    assert subprocess_validator.pid is not None


def test_a_process_has_a_lower_priority_than_running_streams(
    subprocess_validator: GrammarSubprocess,
) -> None:
    subprocess_validator.find_problem(StructuredOutputs(regex="a"))
    assert subprocess_validator.pid is not None
    niceness = os.getpriority(os.PRIO_PROCESS, subprocess_validator.pid)
    assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


def test_no_process_stays_without_its_vocabulary(
    subprocess_validator: GrammarSubprocess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr("quire.framed_child.lower_priority", refuse)
        with pytest.raises(PermissionError):
            subprocess_validator.find_problem(StructuredOutputs(regex="a"))
    assert subprocess_validator.pid is None


def test_it_says_the_same_as_the_compiler_itself(
    subprocess_validator: GrammarSubprocess, byte_compiler: GrammarCompiler
) -> None:
    here = InProcessValidator(byte_compiler)
    for constraint in (
        StructuredOutputs(json={"type": "object", "properties": {"a": {"type": "integer"}}}),
        StructuredOutputs(json={"not": {}}),
        StructuredOutputs(json={"type": "string", "enum": [1]}, field="response_format"),
        StructuredOutputs(choice=["ü", "b"]),
        StructuredOutputs(grammar="start: missing"),
        StructuredOutputs(json_object=True),
    ):
        assert subprocess_validator.find_problem(constraint) == here.find_problem(constraint)


def test_a_process_without_a_parent_ends(subprocess_validator: GrammarSubprocess) -> None:
    subprocess_validator.find_problem(StructuredOutputs(regex="a"))
    child = subprocess_validator._process._child
    assert child is not None
    child._stdin.close()
    assert child.wait(10) == 0


def test_costly_grammars_of_one_caller_do_not_delay_others(
    byte_compiler: GrammarCompiler,
) -> None:
    compilers = [CountingCompiler(byte_compiler) for _ in range(2)]
    checker = GrammarChecker(*map(InProcessValidator, compilers), wait_seconds=5.0)

    async def crowd() -> None:
        costly = [
            asyncio.create_task(checker.check_async(StructuredOutputs(regex=f"slow{i}"), "a"))
            for i in range(20)
        ]
        while not any(compiler.asked for compiler in compilers):
            await asyncio.sleep(0.001)
        for number in range(12):
            constraint = StructuredOutputs(regex=f"quick{number}")
            await asyncio.wait_for(checker.check_async(constraint, "b"), 1.0)
        assert not any(task.done() for task in costly)
        for compiler in compilers:
            compiler.go.set()
        await asyncio.gather(*costly)

    asyncio.run(crowd())
    checker.close()


def test_a_loop_of_costly_grammars_refuses_nobody(byte_tokenizer: Tokenizer) -> None:
    """With real processes: four callers send grammars at the limit, one sends small ones."""
    size, eos = byte_tokenizer.vocab_size, byte_tokenizer.eos_token_id
    assert eos is not None
    vocabulary = Vocabulary(byte_tokenizer, size, [eos])
    validators = [GrammarSubprocess(lambda: vocabulary, 0.3) for _ in range(2)]
    checker = GrammarChecker(*validators, seconds=0.3)

    async def hostile(number: int) -> None:
        count = 0
        while True:
            count += 1
            schema = ENDLESS | {"description": f"{number} {count}"}
            with suppress(InvalidRequestError, OverloadedError):
                await checker.check_async(StructuredOutputs(json=schema), f"hostile {number}")

    async def crowd() -> None:
        tasks = [asyncio.create_task(hostile(number)) for number in range(4)]
        await asyncio.sleep(0.5)
        for number in range(4):
            await checker.check_async(StructuredOutputs(regex=f"a{number}"), "other")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(crowd())
    checker.close()
