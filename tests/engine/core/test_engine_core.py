"""The engine loop with a fake runner: outputs for all inputs, also after failures."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from quire.config import SchedulerConfig
from quire.core.messages import (
    AbortRequests,
    AddRequest,
    ErrorKind,
    GetEngineView,
    RequestDelta,
    ResetPrefixCache,
)
from quire.core.pooling_params import PoolingParams
from quire.core.request_limits import RequestLimits
from quire.core.sampling_params import SamplingParams
from quire.core.scheduler_output import ModelRunnerOutput, SampleResult, SchedulerOutput
from quire.core.structured_outputs import StructuredOutputs
from quire.engine.core.engine_core import EngineCore
from quire.engine.core.executor import Executor, UniprocExecutor
from quire.engine.core.grammar_matchers import GrammarMatchers
from quire.engine.core.queue_deadlines import QueueDeadlines
from quire.engine.core.step_log import StepLog
from quire.errors import invalid_value
from quire.grammar.grammar_matcher import Matcher
from quire.kvcache.block_pool import BlockState
from quire.kvcache.kv_cache_manager import KVCacheManager
from quire.scheduler.scheduler import Scheduler

LIMITS = RequestLimits(max_model_len=64, max_kv_tokens=256, vocab_size=1000, max_num_seqs=8)


class CountingRunner:
    """The next token is always the length of the text so far."""

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        self.breaks_at: set[int] = set()
        self.failure = "planted"
        self.num_resets = 0
        self.not_finite: set[str] = set()
        self.exhausted: set[str] = set()
        self.embeds: set[str] = set()

    def run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        for request in plan.new_requests:
            self.lengths[request.request_id] = len(request.token_ids)
        if plan.step_id in self.breaks_at:
            raise RuntimeError(self.failure)
        return ModelRunnerOutput(results=[self.result(entry) for entry in plan.scheduled])

    def reset(self) -> None:
        self.lengths.clear()
        self.num_resets += 1

    def result(self, entry) -> SampleResult:
        if entry.request_id in self.not_finite:
            return SampleResult(failed=True)
        if entry.request_id in self.exhausted:
            return SampleResult(exhausted=True)
        if not entry.samples:
            return SampleResult()
        if entry.request_id in self.embeds:
            return SampleResult(embedding=bytes(4))
        token_id = self.lengths[entry.request_id]
        self.lengths[entry.request_id] += 1
        return SampleResult(token_id=token_id)


class LateExecutor(UniprocExecutor):
    """Lets the engine plan a step ahead of the results, as a GPU does."""

    max_in_flight = 2


def make_core(
    executor_type: type = UniprocExecutor,
    grammars: GrammarMatchers | None = None,
    find_unsound: Callable[[], str] | None = None,
) -> tuple[EngineCore, CountingRunner]:
    runner = CountingRunner()
    executor: Executor = executor_type(runner)
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32)

    def make_scheduler() -> Scheduler:
        return Scheduler(config, KVCacheManager(64, 4), LIMITS.max_model_len)

    return EngineCore(make_scheduler, executor, LIMITS, grammars, find_unsound), runner


def add(
    core: EngineCore,
    request_id: str,
    prompt_len: int = 5,
    queue_timeout: float | None = None,
    report_progress: bool = False,
    pooling: PoolingParams | None = None,
    **sampling: object,
) -> None:
    core.handle(
        AddRequest(
            request_id=request_id,
            prompt_token_ids=list(range(1, prompt_len + 1)),
            sampling=SamplingParams(**({"max_tokens": 6} | sampling)),
            eos_token_ids=[999],
            queue_timeout=queue_timeout,
            report_progress=report_progress,
            pooling=pooling,
        )
    )


def run_until_idle(core: EngineCore) -> dict[str, list[RequestDelta]]:
    deltas_of: dict[str, list[RequestDelta]] = {}
    for _ in range(1000):
        if not core.has_work:
            return deltas_of
        for delta in core.step().deltas:
            deltas_of.setdefault(delta.request_id, []).append(delta)
    raise AssertionError("the engine never came to rest")


def tokens(deltas: list[RequestDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def ends(deltas: list[RequestDelta]) -> list[str]:
    return [delta.finish_reason for delta in deltas if delta.finish_reason is not None]


@pytest.mark.parametrize("executor_type", [UniprocExecutor, LateExecutor])
class TestLoop:
    def test_answers_every_request_once(self, executor_type: type) -> None:
        core, _ = make_core(executor_type)
        for number in range(20):
            add(core, f"r{number}", prompt_len=3 + number)
        deltas_of = run_until_idle(core)
        for number in range(20):
            deltas = deltas_of[f"r{number}"]
            assert tokens(deltas) == list(range(3 + number, 9 + number))
            assert ends(deltas) == ["length"]
        assert core.stats.num_running == core.stats.num_waiting == 0

    def test_stops_at_a_stop_token_without_surplus(self, executor_type: type) -> None:
        core, _ = make_core(executor_type)
        add(core, "r", stop_token_ids=[7])
        deltas = run_until_idle(core)["r"]
        assert tokens(deltas) == [5, 6, 7]
        assert ends(deltas) == ["stop"]
        assert deltas[-1].stop_token_id == 7

    def test_a_broken_step_ends_its_requests_and_not_the_engine(self, executor_type: type) -> None:
        core, runner = make_core(executor_type)
        runner.breaks_at = {1}
        add(core, "unlucky")
        deltas_of = run_until_idle(core)
        assert ends(deltas_of["unlucky"]) == ["error"]
        assert deltas_of["unlucky"][-1].error is not None
        assert "planted" not in deltas_of["unlucky"][-1].error
        add(core, "lucky")
        assert tokens(run_until_idle(core)["lucky"]) == [5, 6, 7, 8, 9, 10]

    def test_requests_beside_a_broken_step_enter_the_batch_anew(self, executor_type: type) -> None:
        """What the step has left of them in the runner is unknown."""
        core, runner = make_core(executor_type)
        runner.breaks_at = {2}
        add(core, "unlucky")
        # it is in flight, or over
        deltas = [delta for _ in range(3) for delta in core.step().deltas]
        add(core, "beside", max_tokens=20)
        deltas_of = run_until_idle(core)
        assert ends(deltas + deltas_of.get("unlucky", [])) == ["error"]
        assert tokens(deltas_of["beside"]) == list(range(5, 25))
        assert ends(deltas_of["beside"]) == ["length"]
        assert runner.num_resets == 1
        assert core.stats.num_free_blocks + core.stats.num_cached_blocks == 64

    def test_a_lost_device_ends_the_engine_for_another_to_go_on(self, executor_type: type) -> None:
        core, runner = make_core(executor_type)
        runner.breaks_at = {1}
        runner.failure = "CUDA error: an illegal memory access was encountered"
        add(core, "unlucky")
        with pytest.raises(RuntimeError, match="illegal memory access"):
            run_until_idle(core)

    def test_non_finite_logits_end_one_request(self, executor_type: type) -> None:
        core, runner = make_core(executor_type)
        runner.not_finite = {"sick"}
        add(core, "sick", prompt_len=9)
        add(core, "well")
        deltas_of = run_until_idle(core)
        assert ends(deltas_of["sick"]) == ["error"]
        assert tokens(deltas_of["well"]) == [5, 6, 7, 8, 9, 10]

    def test_abort_is_reported_once_and_frees_the_blocks(self, executor_type: type) -> None:
        core, _ = make_core(executor_type)
        add(core, "r", max_tokens=50)
        core.step()
        core.step()
        core.handle(AbortRequests(request_ids=["r", "unknown"]))
        core.handle(AbortRequests(request_ids=["r"]))
        assert ends(run_until_idle(core)["r"]) == ["abort"]
        stats = core.stats
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks

    def test_sampling_params_that_ban_every_token_are_the_callers_fault(
        self, executor_type: type
    ) -> None:
        core, runner = make_core(executor_type)
        runner.exhausted = {"r"}
        add(core, "r")
        (delta,) = run_until_idle(core)["r"]
        assert delta.error_kind is ErrorKind.REQUEST
        assert "left no token to draw" in str(delta.error)

    def test_who_waits_too_long_is_given_up_and_who_runs_is_not(self, executor_type: type) -> None:
        core, _ = make_core(executor_type)
        for number in range(8):  # all rows
            add(core, f"runs{number}", max_tokens=20)
        while core.stats.num_running < 8:
            core.step()
        core._deadlines = QueueDeadlines(lambda: 0.0)
        core._deadlines.add("runs0", 0.0, set())
        add(core, "waits", queue_timeout=0.0)
        add(core, "patient")
        deltas_of = run_until_idle(core)
        (delta,) = deltas_of["waits"]
        assert delta.error_kind is ErrorKind.QUEUE_TIMEOUT
        assert ends(deltas_of["runs0"]) == ends(deltas_of["patient"]) == ["length"]

    def test_blocks_run_out_among_requests_that_share_a_prefix(self, executor_type: type) -> None:
        core, _ = make_core(executor_type)
        for number in range(8):
            add(core, f"r{number}", max_tokens=40)
        deltas_of = run_until_idle(core)
        assert core.stats.num_preemptions > 0
        assert all(tokens(deltas) == list(range(5, 45)) for deltas in deltas_of.values())

    def test_a_reset_prefix_cache_finds_nothing(self, executor_type: type) -> None:
        core, _ = make_core(executor_type)
        for request_id, num_cached in (("a", 0), ("b", 8), ("c", 0)):
            if request_id == "c":
                core.handle(ResetPrefixCache())
            add(core, request_id, prompt_len=9)
            assert run_until_idle(core)[request_id][-1].num_cached_tokens == num_cached


@pytest.mark.parametrize("executor_type", [UniprocExecutor, LateExecutor])
def test_progress_is_reported_at_a_prompts_start_and_after_each_of_its_steps(
    executor_type: type,
) -> None:
    core, _ = make_core(executor_type)  # 32 tokens a step, blocks of 4
    for name in ("first", "again"):
        add(core, name, prompt_len=50, max_tokens=2, report_progress=True)
        core.handle(GetEngineView())
        at_start = core.step()
        assert not at_start.view.steps or name == "again", "it is sent before the step has ended"
        (start,) = at_start.deltas
        rest = run_until_idle(core)[name]
        reports = [start, *rest]
        counts = [count for delta in reports for count in delta.prompt_progress]
        if name == "first":
            assert counts[0] == 0
            assert len(counts) >= 2, "after each step that does not complete the prompt"
        else:
            assert counts == [48], "the blocks that the first has left"
        assert counts == sorted({*counts})
        assert counts[-1] < 50, "its first token says that it is complete"
        assert start.num_cached_tokens == start.prompt_progress[0]
        assert tokens(reports) == [50, 51]
    add(core, "unasked", prompt_len=50, max_tokens=2)
    assert not any(delta.prompt_progress for delta in run_until_idle(core)["unasked"])


def test_a_view_comes_once_for_each_watch_whether_there_is_work_or_not() -> None:
    core, _ = make_core()
    core.handle(GetEngineView())
    assert core.has_work
    view = core.step().view
    assert view is not None
    assert view.block_states == bytes(64)
    assert not core.has_work
    add(core, "a")
    assert core.step().view is None
    core.handle(GetEngineView())
    view = core.step().view
    assert view is not None
    assert set(view.block_states) == {BlockState.FREE, BlockState.USED}
    assert [step.num_prefill_tokens for step in view.steps] == [5, 0]
    assert [step.num_decode_tokens for step in view.steps] == [0, 1]


@pytest.mark.parametrize("executor_type", [UniprocExecutor, LateExecutor])
def test_each_last_delta_has_the_times_of_the_request(executor_type: type) -> None:
    core, _ = make_core(executor_type)
    add(core, "a", max_tokens=3)
    deltas = []
    while core.has_work:
        deltas += core.step().deltas
    assert [delta.timing is not None for delta in deltas] == [True, False, True]
    timing = deltas[-1].timing
    assert timing.queued <= timing.started <= timing.first_token <= timing.last_token
    stats = core.stats
    assert sum(stats.step_tokens.counts) == sum(stats.step_seconds.counts) == stats.num_steps
    assert stats.step_tokens.sum == 5 + 3
    add(core, "b", max_tokens=3)
    while core.has_work:
        core.step()
    assert core.stats.step_tokens.sum == 2 * (5 + 3)  # cached or not


def test_the_prompt_of_an_embedding_counts_in_the_tokens_of_its_step() -> None:
    core, runner = make_core()
    runner.embeds = {"e"}
    add(core, "e", prompt_len=7, pooling=PoolingParams())
    [delta] = run_until_idle(core)["e"]
    assert delta.embedding == bytes(4)
    assert delta.timing is not None
    assert delta.timing.first_token is None
    assert core.stats.step_tokens.sum == 7


def test_a_request_that_never_ran_has_only_been_queued() -> None:
    core, _ = make_core()
    add(core, "a")
    core.handle(AbortRequests(request_ids=["a"]))
    (delta,) = core.step().deltas
    assert delta.timing is not None
    assert delta.timing.started is None


def test_cached_tokens_are_of_the_prompt_also_where_an_answer_goes_on() -> None:
    core, _ = make_core()
    add(core, "a", max_tokens=20)
    run_until_idle(core)
    message = AddRequest(
        request_id="b",
        prompt_token_ids=[1, 2, 3, 4, 5],
        output_token_ids=list(range(5, 20)),
        sampling=SamplingParams(max_tokens=20),
    )
    core.handle(message)
    assert core.step().deltas[0].num_cached_tokens == 5
    assert core.stats.prefix_cache_hits == 16


class SlowCompiler:
    """Makes no matcher before it is let."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def matcher(self, constraint: StructuredOutputs) -> Matcher:
        self.may_go_on.wait(10)
        raise constraint.wrong("planted")


@pytest.mark.parametrize("started", [[], [7]])
def test_who_waits_for_a_matcher_waits_and_is_given_up_like_others(started: list[int]) -> None:
    compiler = SlowCompiler()
    core, _ = make_core(grammars=GrammarMatchers(compiler))
    grammar = StructuredOutputs(regex="a")
    message = AddRequest(
        request_id="a",
        prompt_token_ids=[1],
        output_token_ids=started,
        sampling=SamplingParams(structured_outputs=grammar),
        queue_timeout=0.0,
    )
    core.handle(message)
    assert core.stats.num_waiting == 1
    deltas = core.step().deltas
    if started:  # another engine gave a part of it: it is not given up
        assert deltas == []
        core.handle(AbortRequests(request_ids=["a"]))
        deltas = core.step().deltas
    assert [(d.finish_reason, d.error_kind) for d in deltas] == [
        ("abort", ErrorKind.ENGINE) if started else ("error", ErrorKind.QUEUE_TIMEOUT)
    ]
    assert core.stats.num_waiting == 0
    assert not core.has_work
    compiler.may_go_on.set()


class Anything:
    """A compiler of grammars, and a matcher, that allow all."""

    def matcher(self, _: StructuredOutputs) -> Anything:
        return self

    def advance_to(self, output_token_ids: list[int]) -> None:
        pass


def test_an_id_of_an_unfinished_request_is_dropped_and_may_come_again() -> None:
    core, _ = make_core(grammars=GrammarMatchers(Anything()))
    grammar = {"structured_outputs": StructuredOutputs(regex="a")}
    for first, second in itertools.product(({}, grammar), repeat=2):
        add(core, "a", **first)
        for _ in range(2):
            add(core, "a", **second)
            core.step()
        found = run_until_idle(core)
        assert ends(found["a"]) == ["length"]


@pytest.mark.parametrize("grammar", [None, StructuredOutputs(regex="a")])
@pytest.mark.parametrize("failing", [StepLog.record_arrival, QueueDeadlines.add])
def test_nothing_is_left_of_a_request_that_could_not_be_taken_whole(
    failing: Callable[..., object],
    grammar: StructuredOutputs | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was in the queue already, or its grammar on the way there."""

    def fail(*_: object) -> None:
        raise MemoryError("which only the log may tell")

    core, _ = make_core(grammars=GrammarMatchers(Anything()))
    home = {StepLog.record_arrival: StepLog, QueueDeadlines.add: QueueDeadlines}[failing]
    with monkeypatch.context() as patched:
        patched.setattr(home, failing.__name__, fail)
        add(core, "lost", structured_outputs=grammar)
    assert not core.has_requests
    add(core, "next")
    found = run_until_idle(core)
    assert (ends(found["lost"]), ends(found["next"])) == (["error"], ["length"])
    assert found["lost"][-1].error == "the engine could not take this request"


def test_a_refusal_names_the_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise invalid_value("logit_bias", "bans all; ban fewer")

    core, _ = make_core()
    monkeypatch.setattr(Scheduler, "add", refuse)
    add(core, "a")
    (delta,) = run_until_idle(core)["a"]
    assert (delta.error, delta.error_kind) == ("logit_bias: bans all; ban fewer", ErrorKind.REQUEST)
    assert delta.error_param == "logit_bias"


def test_a_grammar_goes_with_the_request_that_could_not_be_scheduled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    grammars = GrammarMatchers(Anything())
    core, _ = make_core(grammars=grammars)
    monkeypatch.setattr(Scheduler, "add", fail)
    add(core, "lost", structured_outputs=StructuredOutputs(regex="a"))
    assert ends(run_until_idle(core)["lost"]) == ["error"]
    assert not grammars.ready


def test_an_abort_does_not_wait_for_the_search_of_a_weight() -> None:
    """Its caller has left; the error of another request waits for the name."""
    may_end = threading.Event()

    def find() -> str:
        may_end.wait(60)
        return "a weight is bad"

    core, runner = make_core(find_unsound=find)
    runner.not_finite = {"left", "waits"}
    add(core, "left")
    add(core, "waits")
    assert core.step().deltas == []
    core.handle(AbortRequests(request_ids=["left", "unknown"]))
    assert [delta.request_id for delta in core.step().deltas] == ["left"]
    may_end.set()
    (last,) = run_until_idle(core)["waits"]
    assert last.error is not None
    assert "a weight is bad" in last.error


def test_where_no_thread_is_left_a_later_failure_finds_the_weight(
    no_thread_left: Callable[[], AbstractContextManager[None]],
) -> None:
    core, runner = make_core(find_unsound=lambda: "a weight is bad")
    runner.not_finite = {"first", "second"}
    add(core, "first")
    with no_thread_left():
        (first,) = run_until_idle(core)["first"]
    add(core, "second")
    (second,) = run_until_idle(core)["second"]
    assert first.error is not None
    assert "a weight is bad" not in first.error
    assert second.error is not None
    assert "a weight is bad" in second.error


@pytest.mark.parametrize("fails", [False, True])
def test_no_matcher_outlives_its_request(fails: bool) -> None:
    grammars = GrammarMatchers(Anything())
    core, runner = make_core(grammars=grammars)
    runner.not_finite = {"a"} if fails else set()
    add(core, "a", structured_outputs=StructuredOutputs(regex="a"))
    assert ends(run_until_idle(core)["a"]) == ["error" if fails else "length"]
    assert not grammars.ready


def test_who_finds_no_thread_for_its_grammar_is_asked_to_come_again(
    no_thread_left: Callable[[], AbstractContextManager[None]],
) -> None:
    core, _ = make_core(grammars=GrammarMatchers(Anything()))
    grammar = StructuredOutputs(regex="a")
    with no_thread_left():
        add(core, "a", structured_outputs=grammar)
        (delta,) = run_until_idle(core)["a"]
    assert delta.error_kind is ErrorKind.OVERLOAD
    add(core, "a", structured_outputs=grammar)
    assert ends(run_until_idle(core)["a"]) == ["length"]
