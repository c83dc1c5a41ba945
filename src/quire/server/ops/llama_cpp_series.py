"""The metrics under llama.cpp's names, for its dashboards: sums over all models, without labels.

Those of drafts are 0: a step draws one token of each request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quire.server.ops.server_metrics import EngineTotal


def llama_cpp_series(engines: Iterable[EngineTotal]) -> Iterator[Metric]:
    """llama.cpp's metric families."""
    all_engines = list(engines)
    for name, text, value in _counters(all_engines):
        yield CounterMetricFamily(f"llamacpp:{name}", text, value=value)
    for name, text, value in _gauges(all_engines):
        yield GaugeMetricFamily(f"llamacpp:{name}", text, value=value)


_Series = Iterator[tuple[str, str, float]]  # name, help, value


def _counters(engines: list[EngineTotal]) -> _Series:
    requests = [engine.requests for engine in engines]
    computed = sum(r.num_computed_prompt_tokens.sum for r in requests)
    cached = sum(r.num_prompt_tokens.sum for r in requests) - computed
    seconds = sum(r.prefill_time.sum for r in requests)
    yield "prompt_tokens", "Prompt tokens of ended requests without cached ones.", computed
    yield "prompt_tokens_cached", "Prompt tokens of ended requests from the cache.", cached
    yield "prompt_seconds", "Seconds from the start of requests to their first token.", seconds
    generated, seconds = _predicted(engines)
    yield "tokens_predicted", "Generated tokens of ended requests.", generated
    yield "tokens_predicted_seconds", "Seconds from their first token to the last.", seconds
    yield "n_decode", "Engine steps.", sum(engine.counted.num_steps for engine in engines)
    yield "spec_decode_num_draft_tokens", "Draft tokens.", 0
    yield "spec_decode_num_accepted_tokens", "Accepted draft tokens.", 0
    yield "spec_decode_num_drafts", "Drafts.", 0


def _gauges(engines: list[EngineTotal]) -> _Series:
    requests = [engine.requests for engine in engines]
    computed = sum(r.num_computed_prompt_tokens.sum for r in requests)
    prompt_rate = _ratio(computed, sum(r.prefill_time.sum for r in requests))
    generated, seconds = _predicted(engines)
    num_steps = sum(engine.counted.num_steps for engine in engines)
    longest = max((r.longest for r in requests), default=0)
    running, waiting = (
        sum(getattr(engine.latest, name) for engine in engines)
        for name in ("num_running", "num_waiting")
    )
    yield "prompt_tokens_seconds", "Mean prompt tokens a second of a request.", prompt_rate
    yield "predicted_tokens_seconds", "Mean generated tokens a second.", _ratio(generated, seconds)
    yield "requests_processing", "Requests in the running batch.", running
    yield "requests_deferred", "Requests in the queue.", waiting
    yield "n_busy_slots_per_decode", "Tokens generated a step.", _ratio(generated, num_steps)
    yield "n_tokens_max", "Tokens of the longest ended request, its prompt included.", longest


def _predicted(engines: list[EngineTotal]) -> tuple[float, float]:
    """Generated tokens of ended requests, and their seconds after the first."""
    requests = [engine.requests for engine in engines]
    generated = sum(r.num_generation_tokens.sum for r in requests)
    return generated, sum(r.decode_time.sum for r in requests)


def _ratio(number: float, by: float) -> float:
    return number / by if by > 0 else 0.0
