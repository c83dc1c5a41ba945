"""All metric families of a server for Prometheus, with the values of all engines.

Owns the metrics' names: vLLM's where it has one, so that its dashboards work, else `quire:`. Those
of llama.cpp are in llama_cpp_series.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from quire.core.histogram import Histogram
from quire.engine.processes.control_channel import ModelStatus
from quire.server.ops.llama_cpp_series import llama_cpp_series
from quire.server.ops.metric_snapshots import Snapshot
from quire.server.ops.server_metrics import EngineTotal
from quire.version import __version__

LABELS = ("model_name", "engine")
# block size, blocks, tokens that fit, and how many requests of the model's whole length fit
CACHE_LABELS = (
    "block_size",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
)
ENGINE = "0"  # one engine per model

# name, help, field of EngineTotal
GAUGES = (
    ("vllm:num_requests_running", "Requests in the running batch.", "latest.num_running"),
    ("vllm:num_requests_waiting", "Requests in the queue.", "latest.num_waiting"),
)
COUNTERS = (
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.",
     "counted.prefix_cache_queries"),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "counted.prefix_cache_hits"),
    ("vllm:num_preemptions", "Requests preempted because KV blocks ran out.",
     "counted.num_preemptions"),
    ("vllm:prompt_tokens", "Prompt tokens of requests that started to run.",
     "counted.num_prompt_tokens"),
    ("vllm:generation_tokens", "Generated tokens.", "counted.num_generation_tokens"),
    ("vllm:corrupted_requests", "Requests with non-finite logits.",
     "counted.num_corrupted_requests"),
    ("quire:recomputed_tokens", "Tokens computed again after preemptions.",
     "counted.num_recomputed_tokens"),
    ("quire:steps", "Engine steps.", "counted.num_steps"),
    ("quire:graph_steps", "Engine steps that replayed a CUDA graph.", "counted.num_graph_steps"),
    ("quire:bad_frames", "Malformed frames between server and engine.", "counted.num_bad_frames"),
    ("quire:engine_restarts", "Restarts of the engine process.", "latest.num_restarts"),
    ("quire:requests_sent", "Answers requested from the engine.", "requests.num_sent"),
    ("vllm:prompt_tokens_cached",
     "Prompt tokens of ended requests that were found in the prefix cache.",
     "requests.num_cached_tokens"),
)  # fmt: skip
HISTOGRAMS = (
    ("vllm:iteration_tokens_total", "Output tokens of a step and prompts that end in it.",
     "step_tokens"),
    ("quire:step_seconds", "Seconds of an engine step.", "step_seconds"),
    ("vllm:time_to_first_token_seconds", "Seconds from arrival to the first token.",
     "requests.time_to_first_token"),
    ("vllm:inter_token_latency_seconds", "Seconds between consecutive tokens.",
     "requests.inter_token_latency"),
    ("vllm:time_per_output_token_seconds", "Seconds between tokens (older name).",
     "requests.inter_token_latency"),
    ("vllm:request_time_per_output_token_seconds", "Mean seconds between the tokens of a request.",
     "requests.time_per_output_token"),
    ("vllm:e2e_request_latency_seconds", "Seconds from arrival to the end.",
     "requests.e2e_latency"),
    ("vllm:request_queue_time_seconds", "Seconds in the queue.", "requests.queue_time"),
    ("vllm:request_prefill_time_seconds", "Seconds from the start to the first token.",
     "requests.prefill_time"),
    ("vllm:request_decode_time_seconds", "Seconds from the first token to the last.",
     "requests.decode_time"),
    ("vllm:request_inference_time_seconds", "Seconds from the start to the last token.",
     "requests.inference_time"),
    ("vllm:request_prompt_tokens", "Prompt tokens of a request.", "requests.num_prompt_tokens"),
    ("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request without cached ones.",
     "requests.num_computed_prompt_tokens"),
    ("vllm:request_generation_tokens", "Generated tokens of an answer.",
     "requests.num_generation_tokens"),
    ("vllm:request_max_num_generation_tokens", "Generated tokens of a request's longest answer.",
     "requests.max_num_generation_tokens"),
    ("vllm:request_num_preemptions", "Preemptions of a request.", "requests.num_preemptions"),
    ("vllm:request_params_n", "The parameter n of a request.", "requests.params_n"),
    ("vllm:request_params_max_tokens", "The parameter max_tokens of a request.",
     "requests.params_max_tokens"),
)  # fmt: skip

OLDER_COUNTERS = {
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
}

Engines = list[tuple[str, EngineTotal]]


def families(
    total: Snapshot, gpu_hour_cost: float | None, statuses: Sequence[ModelStatus]
) -> Iterator[Metric]:
    """All metric families, each with the values of all engines.

    gpu_hour_cost: None where there is none. statuses: the state of all models, loaded or not.
    """
    engines = [(name, EngineTotal(figures)) for name, figures in total.engines.items()]
    yield from _models(statuses)
    for name, text, field in GAUGES:
        yield _gauge(name, text, _values(engines, field))
    for name, text, field in HISTOGRAMS:
        yield _histogram(name, text, _values(engines, field))
    for name, text, field in COUNTERS:
        values = _values(engines, field)
        yield _counter(name, text, values)
        if name in OLDER_COUNTERS:
            yield _counter(OLDER_COUNTERS[name], f"{text} (Older name.)", values)
    yield from _kv_cache(engines)
    yield from _by_reason(engines)
    yield from llama_cpp_series([engine for _, engine in engines])
    yield from _http(total, engines)
    if gpu_hour_cost is not None:
        yield from _cost(total.started, engines, gpu_hour_cost)


def _models(statuses: Sequence[ModelStatus]) -> Iterator[Metric]:
    """State and memory of models; one that is being loaded or unloaded counts with its memory."""
    loaded = [((model.name,), float(model.state == "loaded")) for model in statuses]
    yield _gauge("quire:model_loaded", "1 for a loaded model, else 0.", loaded)
    sizes = [
        ((model.name,), 0 if model.state == "unloaded" else model.num_bytes)
        for model in statuses
        if model.num_bytes is not None
    ]
    text = "Planned memory of a model's process; 0 while it is unloaded."
    yield _gauge("quire:model_bytes", text, sizes)


def _kv_cache(engines: Engines) -> Iterator[Metric]:
    text = "Share of the KV blocks in use; 1 is all."
    latest = [((model,), e.latest) for model, e in engines]
    usage = [(model, s.num_used_blocks / max(1, s.num_blocks)) for model, s in latest]
    yield _gauge("vllm:kv_cache_usage_perc", text, usage)
    yield _gauge("vllm:gpu_cache_usage_perc", f"{text} (Older name.)", usage)
    layouts = [((model, *_cache_layout(e)), 1) for model, e in engines]
    text = "Block size and number of blocks of the KV cache, and what it holds."
    yield _gauge("vllm:cache_config_info", text, layouts, *CACHE_LABELS)
    states = [((model, state), n) for model, e in engines for state, n in _blocks(e)]
    yield _gauge(
        "quire:kv_blocks", "KV blocks by state; shared ones are also used ones.", states, "state"
    )
    sizes = [
        ((model, state), n * e.kv_cache_bytes // max(1, e.num_blocks))
        for model, e in engines
        for state, n in _blocks(e)
    ]
    yield _gauge("quire:kv_bytes", "Bytes of KV blocks by state.", sizes, "state")


def _by_reason(engines: Engines) -> Iterator[Metric]:
    misses = [
        ((model, why), n)
        for model, e in engines
        for why, n in sorted(e.counted.prefix_cache_misses.items())
    ]
    text = "Tokens looked up but not found in the prefix cache."
    yield _counter("quire:prefix_cache_misses", text, misses, "reason")
    ended = [
        ((model, reason), e.requests.finished[reason])
        for model, e in engines
        for reason in ("stop", "length", "abort", "error")
    ]
    text = "Answers that ended, by reason."
    yield _counter("vllm:request_success", text, ended, "finished_reason")
    waiting = [((model, "capacity"), e.latest.num_waiting) for model, e in engines]
    text = "Requests in the queue, by reason."
    yield _gauge("vllm:num_requests_waiting_by_reason", text, waiting, "reason")


def _http(total: Snapshot, engines: Engines) -> Iterator[Metric]:
    requests = [
        ((path, method, str(status)), count)
        for (path, method, status), count in sorted(total.http_requests.items())
    ]
    text, labels = "HTTP requests answered.", ("path", "method", "status")
    yield _family(CounterMetricFamily, "quire:http_requests", text, labels, requests)
    errors = [((reason,), count) for reason, count in sorted(total.errors.items())]
    text = "HTTP requests answered with an error, by code."
    yield _family(CounterMetricFamily, "quire:rejections", text, ("reason",), errors)
    full = [(("queue_full",), total.errors.get("queue_full", 0))]  # the label that vLLM has
    text = "HTTP requests refused by a full queue."
    yield _family(CounterMetricFamily, "vllm:admission_rejections", text, ("reason",), full)
    num_dropped = sum(e.counted.num_dropped_log_lines for _, e in engines)
    dropped = [(("api",), total.dropped_log_lines), (("engine",), num_dropped)]
    text = "Log lines dropped because nothing reads them."
    yield _family(CounterMetricFamily, "quire:log_lines_dropped", text, ("process",), dropped)
    version = [((__version__,), 1)]
    yield _family(
        GaugeMetricFamily, "quire:build_info", "The version of Quire.", ("version",), version
    )


def _cost(started: float, engines: Engines, per_hour: float) -> Iterator[Metric]:
    """Cost since the start; for other periods, divide the rates of the counters."""
    spent = per_hour * max(0.0, time.monotonic() - started) / 3600
    yield CounterMetricFamily("quire:cost", "Cost of the server since its start.", value=spent)
    generated = sum(e.counted.num_generation_tokens for _, e in engines)
    prompt = sum(e.counted.num_prompt_tokens for _, e in engines)
    costs = [
        ((kind,), spent / count * 1e6)
        for kind, count in (("generated", generated), ("all", generated + prompt))
        if count
    ]
    text = "Cost per million tokens since the start."
    yield _family(GaugeMetricFamily, "quire:cost_per_million_tokens", text, ("tokens",), costs)


def _cache_layout(engine: EngineTotal) -> list[str]:
    """The values of CACHE_LABELS."""
    num_tokens = engine.block_size * engine.num_blocks
    longest = num_tokens / max(1, engine.max_model_len)
    return [str(engine.block_size), str(engine.num_blocks), str(num_tokens), f"{longest:.2f}"]


def _blocks(engine: EngineTotal) -> list[tuple[str, int]]:
    stats = engine.latest
    return [
        ("free", stats.num_free_blocks),
        ("cached", stats.num_cached_blocks),
        ("used", stats.num_used_blocks),
        ("shared", stats.num_shared_blocks),
    ]


Values = Sequence[tuple[tuple[str, ...], float]]  # label values, value; of engines the model first


def _values(engines: Engines, field: str) -> list[tuple[tuple[str], Any]]:
    """A field of each engine's total, such as latest.num_running."""
    value = attrgetter(field)
    return [((model,), value(engine)) for model, engine in engines]


def _gauge(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _family(GaugeMetricFamily, name, text, (*LABELS, *labels), _with_engine(values))


def _counter(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _family(CounterMetricFamily, name, text, (*LABELS, *labels), _with_engine(values))


def _with_engine(values: Values) -> Values:
    return [((model, ENGINE, *others), value) for (model, *others), value in values]


def _family(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    text: str,
    labels: Sequence[str],
    values: Values,
) -> Metric:
    family = kind(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _histogram(name: str, text: str, values: Sequence[tuple[tuple[str], Histogram]]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=list(LABELS))
    for (model,), histogram in values:
        family.add_metric([model, ENGINE], _cumulative(histogram), histogram.sum)
    return family


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return buckets
