"""Figures add up: over requests, over processes dead and alive, over an engine's epochs."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from asgi_client import call
from fake_engine import FakeEngine
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request

from quire.core.histogram import STEP_SECONDS_BOUNDS, STEP_TOKEN_BOUNDS, Histogram, HistogramData
from quire.core.messages import EngineStats, RequestTiming
from quire.core.sampling_params import SamplingParams
from quire.engine.frontend.request_metrics import RequestMetrics
from quire.engine.processes.control_channel import ModelStatus
from quire.server.app import build_app
from quire.server.model_registry import ModelRegistry
from quire.server.ops.metric_snapshots import SnapshotFolder
from quire.server.ops.metrics_route import metrics_route
from quire.server.ops.prometheus_page import expose
from quire.server.ops.server_metrics import Metrics
from quire.server.settings import ServerSettings

# every series that the dashboards in vLLM's repository ask for (0.11.1 and 0.33.0), and the names
# that its own test of this page expects
OF_DASHBOARDS = [
    *(
        f"vllm:{name}_{suffix}"
        for suffix in ("bucket", "count", "sum")
        for name in (
            *("e2e_request_latency_seconds", "inter_token_latency_seconds"),
            *("iteration_tokens_total", "request_decode_time_seconds"),
            *("request_generation_tokens", "request_inference_time_seconds"),
            *("request_max_num_generation_tokens", "request_params_max_tokens"),
            *("request_num_preemptions", "request_params_n"),
            "request_prefill_kv_computed_tokens",
            *("request_prefill_time_seconds", "request_prompt_tokens"),
            *("request_queue_time_seconds", "request_time_per_output_token_seconds"),
            *("time_per_output_token_seconds", "time_to_first_token_seconds"),
        )
    ),
    *("vllm:admission_rejections_total", "vllm:cache_config_info", "vllm:generation_tokens_total"),
    *("vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total"),
    *("vllm:gpu_prefix_cache_queries_total", "vllm:kv_cache_usage_perc"),
    *("vllm:num_preemptions_total", "vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:num_requests_waiting_by_reason", "vllm:prefix_cache_hits_total"),
    *("vllm:prefix_cache_queries_total", "vllm:prompt_tokens_cached_total"),
    *("vllm:prompt_tokens_total", "vllm:request_success_total"),
]

# those of llama.cpp's server, all without labels; the parser adds _total to counters without it
OF_LLAMA_CPP = [
    f"llamacpp:{name}"
    for name in (
        *("prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total"),
        *("tokens_predicted_total", "tokens_predicted_seconds_total", "n_decode_total"),
        *(
            "n_tokens_max_total",
            "spec_decode_num_drafts_total",
            "spec_decode_num_draft_tokens_total",
        ),
        "spec_decode_num_accepted_tokens_total",
        *("prompt_tokens_seconds", "predicted_tokens_seconds", "requests_processing"),
        *("requests_deferred", "n_busy_slots_per_decode"),
    )
]


@functools.cache
def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    """The sum of all series with this name and these labels."""
    wanted = set(labels.items())
    found = [v for (n, have), v in series(text).items() if n == name and wanted <= have]
    assert found, f"no series {name} {labels}"
    return sum(found)


def text_of(metrics: Metrics, cost: float | None = None) -> str:
    return expose(metrics.total(), cost, "")[0].decode()


def answered(metrics: RequestMetrics, reason: str, num_tokens: int = 3) -> None:
    (times,) = metrics.record_request(100.0, 5, SamplingParams(max_tokens=8))
    for index in range(num_tokens):
        metrics.tokens(times, 1, 100.1 + index / 10)
    times.timing = RequestTiming(100.0, 100.0) if num_tokens else None
    metrics.finish(times, reason, 101.0)


def process(folder: Path | None, engine: FakeEngine) -> Metrics:
    metrics = Metrics(folder)
    metrics.add_engine(engine)
    return metrics


def test_the_names_that_dashboards_ask_for_are_there(app: Starlette) -> None:
    reply = call(app, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    names = {name for name, _ in series(reply.body.decode())}
    assert [name for name in OF_DASHBOARDS if name not in names] == []
    assert {name for name in names if name.startswith("llamacpp:")} == set(OF_LLAMA_CPP)
    assert b"# TYPE llamacpp:n_tokens_max counter\n" in reply.body
    assert int(reply.headers["process-start-time-unix"]) > 1_700_000_000
    assert (
        value(reply.body.decode(), "vllm:num_requests_running", model_name="fake", engine="0") == 0
    )


def test_openmetrics_is_spoken_to_those_who_ask(app: Starlette) -> None:
    headers = {"accept": "application/openmetrics-text; version=1.0.0"}
    reply = call(app, "/metrics", headers=headers)
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    # a counter's name ends with _total
    assert b"# TYPE llamacpp:n_tokens_max gauge\n" in reply.body
    assert reply.body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,*/*;q=0.2",
        "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.6",
        "application/openmetrics-text",
        "text/plain;version=1.0.0;escaping=underscores",
    ],
)
def test_names_keep_their_colons_in_each_format(app: Starlette, accept: str) -> None:
    """As Prometheus 2 and 3 ask, whose dashboards look for `vllm:...`."""
    _, plain, asked = (  # the first one counts a request
        call(app, "/metrics", headers={"accept": each}).body.decode()
        for each in ("*/*", "*/*", accept)
    )
    names, expected = (
        {re.split("[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
        for text in (asked, plain)
    )
    assert names == expected
    if asked.endswith("# EOF\n"):
        assert list(openmetrics.text_string_to_metric_families(asked))


def test_processes_add_up_and_dead_ones_stay(tmp_path: Path) -> None:
    engines = [FakeEngine(), FakeEngine(), FakeEngine()]
    for count, engine in enumerate(engines, start=1):
        for _ in range(count):
            answered(engine.metrics, "stop")
        answered(engine.metrics, "abort", num_tokens=0)
    first, second, asked = (process(tmp_path, engine) for engine in engines)
    first.share()
    second.share()
    del first  # a process that has died has left its file
    text = text_of(asked)
    assert value(text, "vllm:request_success_total", finished_reason="stop") == 6
    assert (
        value(text, "vllm:request_success_total") == value(text, "quire:requests_sent_total") == 9
    )
    assert value(text, "vllm:e2e_request_latency_seconds_count") == 9
    assert value(text, "vllm:time_to_first_token_seconds_count") == 6
    assert value(text, "vllm:inter_token_latency_seconds_count") == 12
    assert value(text, "vllm:request_generation_tokens_sum") == 18
    assert value(text, "vllm:time_to_first_token_seconds_bucket", le="+Inf") == 6
    assert value(text, "llamacpp:prompt_tokens_total") == 6 * 5
    assert value(text, "llamacpp:tokens_predicted_total") == 18
    assert value(text, "llamacpp:n_tokens_max_total") == 5 + 3


def test_each_figure_of_a_request_has_its_own_name() -> None:
    """No two of them are the same number here."""
    engine = FakeEngine()
    first, second = engine.metrics.record_request(100.0, 50, SamplingParams(n=2, max_tokens=9))
    engine.metrics.tokens(first, 1, 107.0)
    engine.metrics.tokens(first, 3, 119.0)
    first.timing = RequestTiming(101.0, 103.0, 106.0, 118.0, num_preemptions=5)
    first.num_cached_tokens = 32
    engine.metrics.finish(first, "stop", 123.0)
    engine.metrics.tokens(second, 7, 130.0)
    engine.metrics.finish(second, "length", 140.0)
    text = text_of(process(None, engine))
    sums = {
        "time_to_first_token_seconds": 7 + 30,
        "inter_token_latency_seconds": 12,  # together, as the second answer's came at once
        "time_per_output_token_seconds": 12,
        "request_time_per_output_token_seconds": 12 / 3,
        "e2e_request_latency_seconds": 23 + 40,
        "request_queue_time_seconds": 2,
        "request_prefill_time_seconds": 3,
        "request_decode_time_seconds": 13,  # to the last token that has arrived
        "request_inference_time_seconds": 16,
        "request_prompt_tokens": 2 * 50,
        "request_prefill_kv_computed_tokens": 18,
        "request_generation_tokens": 4 + 7,
        "request_max_num_generation_tokens": 7,
        "request_num_preemptions": 5,
        "request_params_n": 2,
        "request_params_max_tokens": 9,
    }
    assert {name: value(text, f"vllm:{name}_sum") for name in sums} == sums
    assert value(text, "vllm:prompt_tokens_cached_total") == 32


def test_each_figure_of_an_engine_has_its_own_name() -> None:
    tokens, seconds = Histogram(STEP_TOKEN_BOUNDS), Histogram(STEP_SECONDS_BOUNDS)
    tokens.observe(30.0)
    seconds.observe(40.0)
    names = {
        "vllm:num_requests_running": "num_running",
        "vllm:num_requests_waiting": "num_waiting",
        "vllm:prefix_cache_queries_total": "prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total": "prefix_cache_queries",
        "vllm:prefix_cache_hits_total": "prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total": "prefix_cache_hits",
        "vllm:num_preemptions_total": "num_preemptions",
        "vllm:prompt_tokens_total": "num_prompt_tokens",
        "vllm:generation_tokens_total": "num_generation_tokens",
        "vllm:corrupted_requests_total": "num_corrupted_requests",
        "quire:recomputed_tokens_total": "num_recomputed_tokens",
        "quire:steps_total": "num_steps",
        "quire:graph_steps_total": "num_graph_steps",
        "quire:bad_frames_total": "num_bad_frames",
    }
    counts = {field: number for number, field in enumerate(dict.fromkeys(names.values()), start=1)}
    engine = FakeEngine()
    engine.stats = EngineStats(
        time=1.0, step_tokens=tokens.data(), step_seconds=seconds.data(), **counts
    )
    text = text_of(process(None, engine))
    assert {name: value(text, name) for name in names} == {n: counts[f] for n, f in names.items()}
    assert value(text, "vllm:iteration_tokens_total_sum") == 30
    assert value(text, "quire:step_seconds_sum") == 40


def test_busy_slots_are_counted_while_requests_run() -> None:
    engine = FakeEngine()
    engine.stats = EngineStats(num_steps=10, num_generation_tokens=35)
    metrics = process(None, engine)
    assert value(text_of(metrics), "llamacpp:n_busy_slots_per_decode") == 3.5


def test_counters_never_go_back_whichever_process_is_asked(tmp_path: Path) -> None:
    """Prometheus takes a lower count for a restart of the server."""
    engines = [FakeEngine(), FakeEngine()]
    first, second = (process(tmp_path, engine) for engine in engines)

    def scraped(metrics: Metrics) -> float:
        route = metrics_route(metrics, ModelRegistry.of(FakeEngine(), ServerSettings()), None)
        reply = asyncio.run(route.endpoint(Request({"type": "http", "headers": []})))
        return value(bytes(reply.body).decode(), "vllm:request_success_total")

    answered(engines[0].metrics, "stop")
    assert scraped(first) == scraped(second) == 1
    answered(engines[1].metrics, "stop")
    assert scraped(second) == scraped(first) == 2


def test_the_engine_counts_once_however_many_processes_know_it(tmp_path: Path) -> None:
    tokens = Histogram(STEP_TOKEN_BOUNDS)
    for _ in range(7):
        tokens.observe(3.0)
    engines = [FakeEngine(), FakeEngine()]
    old = {"num_steps": 5, "num_graph_steps": 4, "num_running": 9, "time": 1.0}
    engines[0].stats = EngineStats(epoch=0, **old)
    engines[1].stats = EngineStats(
        time=2.0,
        num_steps=7,
        num_graph_steps=6,
        num_running=1,
        num_blocks=256,
        num_free_blocks=200,
        step_tokens=tokens.data(),
    )
    stale, fresh = (process(tmp_path, engine) for engine in engines)
    fresh.share()
    text = text_of(stale)  # the newest figures count, whoever is asked
    assert value(text, "quire:steps_total") == 7
    assert value(text, "quire:graph_steps_total") == 6
    assert value(text, "vllm:num_requests_running") == 1
    assert value(text, "vllm:iteration_tokens_total_count") == 7
    assert value(text, "vllm:kv_cache_usage_perc") == 56 / 256
    assert value(text, "quire:kv_bytes", state="used") == 56 * (3 << 20) // 256
    assert value(text, "vllm:cache_config_info", kv_cache_max_concurrency="4.00") == 1


def test_counters_go_on_when_the_engine_is_restarted() -> None:
    engine = FakeEngine()
    metrics = process(None, engine)
    engine.stats = EngineStats(
        epoch=0, time=1.0, num_steps=5, num_running=3, prefix_cache_misses={"cold": 4}
    )
    metrics.snapshot()
    engine.stats = EngineStats(
        epoch=1, num_restarts=1, time=2.0, num_steps=2, prefix_cache_misses={"cold": 1}
    )
    text = text_of(metrics)
    assert value(text, "quire:steps_total") == 7
    assert value(text, "vllm:num_requests_running") == 0
    assert value(text, "quire:prefix_cache_misses_total", reason="cold") == 5
    assert value(text, "quire:engine_restarts_total") == 1
    engine.stats = EngineStats(epoch=2, num_restarts=1, time=3.0)  # it was unloaded, and loaded
    assert value(text_of(metrics), "quire:engine_restarts_total") == 1
    assert value(text_of(metrics), "quire:steps_total") == 7


def test_figures_do_not_grow_with_each_load(tmp_path: Path) -> None:
    """A model that is loaded on demand is loaded thousands of times; every start has figures."""
    engines = [FakeEngine(), FakeEngine()]
    first, second = (process(tmp_path, engine) for engine in engines)
    for epoch in range(1000):
        stats = EngineStats(
            epoch=epoch,
            time=1.0 + epoch,
            num_steps=1,
            num_running=7,
            prefix_cache_misses={"cold": 3},
            step_tokens=HistogramData([1] * (len(STEP_TOKEN_BOUNDS) + 1), 4.0),
        )
        for engine, metrics in zip(engines, (first, second), strict=True):
            if epoch % 3 or engine is engines[0]:  # this process has not heard of all of them
                engine.stats = stats
            metrics.share()
    for metrics in (first, second, process(tmp_path, engines[0])):
        text = text_of(metrics)
        assert value(text, "quire:steps_total") == 1000
        assert value(text, "quire:prefix_cache_misses_total", reason="cold") == 3000
        assert value(text, "vllm:iteration_tokens_total_sum") == 4000
        assert value(text, "vllm:num_requests_running") == 7
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000


def test_models_that_are_loaded_and_their_memory(app: Starlette) -> None:
    """Loaded by their states alone, so that one without a process has a series, too."""
    states = ("unloaded", "loading", "loaded", "unloading")
    models = [
        ModelStatus(name=state, state=state, at_start=False, max_num_seqs=1, num_bytes=7)
        for state in states
    ]
    text = expose(Metrics().total(), None, "", models)[0].decode()
    loaded = [value(text, "quire:model_loaded", model_name=state) for state in states]
    assert loaded == [0, 0, 1, 0]
    sizes = [value(text, "quire:model_bytes", model_name=state) for state in states]
    assert sizes == [0, 7, 7, 7]
    served = call(app, "/metrics").body.decode()
    assert value(served, "quire:model_loaded", model_name="fake") == 1


def test_http_requests_and_rejections_are_counted(app: Starlette) -> None:
    call(app, "/v1/completions", {"prompt": "a"})
    call(app, "/v1/completions", {"prompt": "a", "n": "b"})
    call(app, "/v1/nowhere", {})
    call(app, "/models")
    for name in ("fake", "org/ghost"):
        call(app, f"/v1/models/{name}", method="GET")
    text = call(app, "/metrics").body.decode()
    template = "/v1/models/{name}"
    assert value(text, "quire:http_requests_total", path=template, status="200") == 1
    assert value(text, "quire:http_requests_total", path=template, status="404") == 1
    path = "/v1/completions"
    assert value(text, "quire:http_requests_total", path=path, status="200") == 1
    assert value(text, "quire:http_requests_total", path=path, status="400") == 1
    assert value(text, "quire:http_requests_total", path="/models", status="200") == 1
    assert value(text, "quire:http_requests_total", path="other", status="404") == 1
    assert value(text, "quire:rejections_total", reason="invalid_value") == 1


def test_an_error_at_the_end_of_a_stream_is_counted(app: Starlette, engine: FakeEngine) -> None:
    engine.fail_at = 2
    call(app, "/v1/completions", {"prompt": "a", "stream": True})
    text = call(app, "/metrics").body.decode()
    assert value(text, "quire:rejections_total", reason="internal_error") == 1


def test_cost_is_exported_once_an_hour_has_a_price() -> None:
    engine = FakeEngine()
    engine.stats = EngineStats(num_generation_tokens=500_000, num_prompt_tokens=1_500_000)
    metrics = process(None, engine)
    metrics._started -= 3600
    text = text_of(metrics, cost=2.0)
    assert value(text, "quire:cost_per_million_tokens", tokens="generated") == pytest.approx(
        4, 0.01
    )
    assert value(text, "quire:cost_per_million_tokens", tokens="all") == pytest.approx(1, 0.01)
    assert "quire:cost" not in text_of(metrics)


def test_a_file_that_cannot_be_read_costs_its_own_figures_only(tmp_path: Path) -> None:
    process(tmp_path, FakeEngine()).share()
    (tmp_path / "torn.metrics").write_bytes(b"\x93")
    (tmp_path / "folder.metrics").mkdir()
    assert len(SnapshotFolder(tmp_path).read_others()) == 1


def test_a_folder_that_cannot_be_written_costs_figures_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = process(tmp_path / "gone", FakeEngine())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # once for a row of failures
            metrics.share()
        assert caplog.text.count("could not be written") == 1
        (tmp_path / "gone").mkdir()
        metrics.share()
        shutil.rmtree(tmp_path / "gone")
        metrics.share()
    assert caplog.text.count("could not be written") == 2


def test_the_last_figures_are_written_when_the_server_ends(tmp_path: Path) -> None:
    engine: Any = FakeEngine()

    async def live() -> None:
        app = build_app(engine, ServerSettings(), tmp_path)
        async with app.router.lifespan_context(app):
            answered(engine.metrics, "length")

    asyncio.run(live())
    text = text_of(process(tmp_path, FakeEngine()))
    assert value(text, "vllm:request_success_total", finished_reason="length") == 1
