"""Counting requests: each ends once, each token counts once, processes add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.messages import RequestTiming
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.request_metrics import BATCH, RequestMetrics


def sent(metrics: RequestMetrics, n: int = 1):
    return metrics.record_request(100.0, 7, SamplingParams(n=n, max_tokens=20))


def as_read(metrics: RequestMetrics) -> RequestMetrics:
    total = RequestMetrics()
    total.add(metrics.figures())
    return total


def test_a_streamed_answer() -> None:
    metrics = RequestMetrics()
    (times,) = sent(metrics)
    metrics.tokens(times, 1, 100.5)
    metrics.tokens(times, 1, 100.6)
    metrics.tokens(times, 2, 100.8)
    times.timing = RequestTiming(100.1, 100.2, 100.5, 100.5, 2)  # as told with the first token
    metrics.finish(times, "stop", 100.8)
    metrics = as_read(metrics)
    assert metrics.time_to_first_token.count == 1
    assert metrics.inter_token_latency.count == 3
    assert abs(metrics.inter_token_latency.sum - 0.3) < 1e-9
    assert metrics.num_generation_tokens.sum == 4
    assert abs(metrics.time_per_output_token.sum - 0.1) < 1e-9
    assert abs(metrics.queue_time.sum - 0.1) < 1e-9
    assert (metrics.num_preemptions.count, metrics.num_preemptions.sum) == (1, 2)
    assert abs(metrics.prefill_time.sum - 0.3) < 1e-9
    assert abs(metrics.inference_time.sum - 0.6) < 1e-9


def test_the_longest_of_several_answers_counts_once() -> None:
    metrics = RequestMetrics()
    first, second = sent(metrics, n=2)
    first.num_cached_tokens = 4
    for times, count in ((first, 3), (second, 8)):
        times.timing = RequestTiming(100.1, 100.2)
        metrics.tokens(times, count, 100.5)
        assert as_read(metrics).max_num_generation_tokens.count == 0
        metrics.finish(times, "stop", 101.0)
    metrics = as_read(metrics)
    longest = metrics.max_num_generation_tokens
    assert (longest.count, longest.sum) == (1, 8)
    assert metrics.num_computed_prompt_tokens.sum == 3 + 7
    assert metrics.num_cached_tokens == 4


def test_what_was_computed_of_aborted_requests_is_what_the_engine_has_reported() -> None:
    metrics = RequestMetrics()
    for timing in (None, RequestTiming(100.1), RequestTiming(100.1, 100.2, 100.5)):
        (times,) = sent(metrics)
        times.timing, times.num_cached_tokens = timing, 0 if timing is None else 4
        metrics.finish(times, "abort", 101.0)
    metrics = as_read(metrics)
    assert (metrics.num_computed_prompt_tokens.count, metrics.num_prompt_tokens.count) == (1, 3)
    assert (metrics.num_computed_prompt_tokens.sum, metrics.num_cached_tokens) == (3, 4)


def test_an_answer_delivered_at_its_end_has_the_engines_times() -> None:
    metrics = RequestMetrics()
    (times,) = sent(metrics)
    metrics.tokens_at_end(times, 5, RequestTiming(100.0, 100.1, 100.25, 100.65), 101.0)
    assert (metrics.time_to_first_token.sum, metrics.inter_token_latency.count) == (0.25, 4)
    assert abs(metrics.inter_token_latency.sum - 0.4) < 1e-9
    assert times.num_tokens == 5


endings = st.lists(
    st.tuples(
        st.sampled_from(["stop", "length", "abort", "error"]),
        st.lists(st.integers(1, 5), max_size=6),
    ),
    max_size=12,
)


@given(endings, endings)
def test_nothing_is_lost_and_processes_add_up(first, second) -> None:
    total = RequestMetrics()
    for answers in (first, second):
        metrics = RequestMetrics()
        now = 100.0
        for reason, batches in answers:
            (times,) = sent(metrics)
            for count in batches:
                now += 0.01
                metrics.tokens(times, count, now)
            metrics.finish(times, reason, now)
        total.add(metrics.figures())
    answers = first + second
    with_tokens = [batches for _, batches in answers if batches]
    assert total.num_sent == len(answers) == sum(total.finished.values())
    assert total.e2e_latency.count == total.num_generation_tokens.count == len(answers)
    assert total.time_to_first_token.count == len(with_tokens)
    assert total.num_generation_tokens.sum == sum(map(sum, with_tokens))
    assert total.inter_token_latency.count == total.num_generation_tokens.sum - len(with_tokens)
    assert total.num_prompt_tokens.sum == 7 * len(answers)


def test_each_of_n_answers_counts() -> None:
    metrics = RequestMetrics()
    for times in sent(metrics, n=3):
        metrics.finish(times, "abort", 100.1)
    assert (metrics.num_sent, metrics.finished["abort"], as_read(metrics).params_n.count) == (
        3,
        3,
        1,
    )


def test_what_nobody_reads_takes_no_memory() -> None:
    metrics = RequestMetrics()
    for _ in range(BATCH):
        (times,) = sent(metrics)
        metrics.finish(times, "stop", 100.1)
    assert metrics.e2e_latency.count == metrics.params_n.count == BATCH
    assert as_read(metrics).e2e_latency.count == BATCH  # and each counts once
