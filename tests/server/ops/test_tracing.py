"""Spans: one per request that used the model, in the caller's trace, without its words."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_client import JSON, call
from fake_engine import FakeEngine
from starlette.applications import Starlette

from quire.core.sampling_params import SamplingParams
from quire.errors import ConfigError
from quire.server.api.common.generation_job import GenerationRecord, make_job
from quire.server.api.common.generation_request import GenerationRequest
from quire.server.app import build_app
from quire.server.http.request_record import RequestRecord
from quire.server.model_registry import ModelRegistry
from quire.server.ops.tracing import Tracer
from quire.server.settings import ServerSettings

pytest.importorskip("opentelemetry.sdk", reason="the extra `trace` is not installed")

from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, in_batches=False)
    monkeypatch.setattr(Tracer, "sending_to", lambda _endpoint: tracer)
    yield exporter
    tracer.close()


@pytest.fixture
def traced(exporter: InMemorySpanExporter, engine: FakeEngine) -> Starlette:  # noqa: ARG001
    return build_app(engine, ServerSettings(otlp_traces_endpoint="http://127.0.0.1:4318"))


def test_a_request_is_a_span_of_its_callers_trace(
    traced: Starlette, exporter: InMemorySpanExporter
) -> None:
    headers = JSON | {"traceparent": PARENT, "x-request-id": "label"}
    body = {"prompt": "canary", "max_tokens": 4, "temperature": 0.5}
    call(traced, "/v1/completions", body, headers=headers)
    (span,) = exporter.get_finished_spans()
    assert span.name == "text_completion fake"
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    found = dict(span.attributes or {})
    assert found["gen_ai.usage.input_tokens"] == 6
    assert found["gen_ai.usage.output_tokens"] == 4
    assert found["gen_ai.request.max_tokens"] == 4
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.response.finish_reasons"] == ("stop",)
    assert found["http.response.status_code"] == 200
    assert found["quire.request_id"] == "label"
    assert "canary" not in str(found)
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time >= span.start_time


def test_a_clock_that_is_set_back_changes_no_duration(
    exporter: InMemorySpanExporter, traced: Starlette, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_hour_ago = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: an_hour_ago)
    call(traced, "/v1/completions", {"prompt": "x", "max_tokens": 4})
    (span,) = exporter.get_finished_spans()
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0 <= span.end_time - span.start_time < 60 * 10**9


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "operation"),
    [
        ("/chat/completions", CHAT, "chat"),
        ("/v1/responses", {"input": "hi"}, "chat"),
        ("/v1/messages", CHAT | {"max_tokens": 9}, "chat"),
        ("/api/chat", CHAT, "chat"),
        ("/completion", {"prompt": "hi"}, "text_completion"),
        ("/invocations", {"prompt": "hi"}, "text_completion"),
        ("/api/generate", {"prompt": "hi", "raw": True}, "text_completion"),
        ("/v1/embeddings", {"input": "hi"}, "embeddings"),
        ("/pooling", {"input": "hi"}, "embeddings"),
        ("/api/embed", {"input": "hi"}, "embeddings"),
        ("/v1/score", {"queries": "hi", "documents": "ho"}, "embeddings"),
        ("/rerank", {"query": "hi", "documents": ["ho"]}, "embeddings"),
    ],
)
def test_an_operation_is_named_by_its_kind_and_not_by_its_path(
    traced: Starlette,
    exporter: InMemorySpanExporter,
    path: str,
    body: dict[str, Any],
    operation: str,
) -> None:
    call(traced, path, body)
    (span,) = exporter.get_finished_spans()
    assert span.name == f"{operation} fake"


def test_a_client_that_leaves_has_seen_no_status(exporter: InMemorySpanExporter) -> None:
    tracer = Tracer(exporter, in_batches=False)
    model = ModelRegistry.of(FakeEngine(), ServerSettings()).find(None)
    job = make_job("cmpl", GenerationRequest(), ["a"], SamplingParams(), model)
    generation = GenerationRecord(job)
    tracer.trace(RequestRecord("POST", "/v1/completions", "label", generation=generation))
    (span,) = exporter.get_finished_spans()
    assert "http.response.status_code" not in (span.attributes or {})


def test_a_failure_is_an_error_and_a_wrong_parent_is_none(
    traced: Starlette, exporter: InMemorySpanExporter, engine: FakeEngine
) -> None:
    engine.fail_at = 1
    headers = JSON | {"traceparent": "nonsense"}
    call(traced, "/v1/completions", {"prompt": "a", "stream": True}, headers=headers)
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    assert not span.status.is_ok
    assert dict(span.attributes or {})["error.type"] == "internal_error"


def test_what_does_not_use_the_model_is_no_span(
    traced: Starlette, exporter: InMemorySpanExporter
) -> None:
    call(traced, "/health")
    call(traced, "/v1/completions", {"prompt": 1.5})
    assert exporter.get_finished_spans() == ()


def test_a_missing_extra_is_said_before_the_server_starts(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"pip install '.\[trace\]'"):
        build_app(engine, ServerSettings(otlp_traces_endpoint="http://127.0.0.1:4318"))


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="otlp_traces_endpoint"):
        ServerSettings(otlp_traces_endpoint="localhost:4317")


class Deaf(InMemorySpanExporter):
    """A collector that takes a connection and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.gave_up = threading.Event()

    def export(self, spans: Any) -> SpanExportResult:  # noqa: ARG002
        self.gave_up.wait(20)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.gave_up.set()


def test_a_dead_collector_holds_the_end_up_for_a_second(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = Tracer(Deaf())
    monkeypatch.setattr(Tracer, "sending_to", lambda _endpoint: tracer)
    app = build_app(engine, ServerSettings(otlp_traces_endpoint="http://127.0.0.1:4318"))
    for _ in range(3):
        call(app, "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=JSON)
    begin = time.monotonic()
    with caplog.at_level(logging.WARNING, "quire.server.ops.tracing"):
        tracer.close()
    assert 0.9 < time.monotonic() - begin < 3.0
    assert "3 of 3 traces could not be sent" in caplog.text


def test_what_was_sent_is_not_counted_as_lost(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    monkeypatch.setattr(Tracer, "sending_to", lambda _endpoint: tracer)
    app = build_app(engine, ServerSettings(otlp_traces_endpoint="http://127.0.0.1:4318"))
    call(app, "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=JSON)
    tracer.close()
    assert len(exporter.get_finished_spans()) == 1
    assert "lost" not in caplog.text
