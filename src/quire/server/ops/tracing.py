"""OpenTelemetry traces: one span for each request that ran a model, made when it has ended.

The optional dependency `trace` has the libraries; without an endpoint they are not imported. A
request's `traceparent` header makes its span part of the caller's trace.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from quire.errors import ConfigError
from quire.processes import try_start
from quire.server.api.common.generation_job import GenerationRecord, generation_of
from quire.server.http.request_record import RequestRecord
from quire.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

LAST_SECONDS = 1.0  # to send the rest at shutdown, which a dead collector must not delay

MISSING = (
    "otlp_traces_endpoint needs OpenTelemetry, which is not installed; install it with "
    "`pip install '.[trace]'` in the source tree, or leave the setting out"
)

# gen_ai.operation.name by what a reply's id begins with, whatever the path; all others are "chat"
_OPERATIONS = dict.fromkeys(("cmpl", "gen"), "text_completion") | dict.fromkeys(
    ("embd", "pool", "score", "rerank"), "embeddings"
)


class CountingExporter:
    """A span exporter that counts the spans that arrived."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.num_sent = 0
        self.shutdown = exporter.shutdown
        self.force_flush = exporter.force_flush

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, and count them if the collector took them."""
        result = self._exporter.export(spans)
        if result.name == "SUCCESS":
            self.num_sent += len(spans)
        return result


class Tracer:
    """Makes spans and sends them: in batches from a thread, or each one at once (in tests)."""

    def __init__(self, exporter: SpanExporter, *, in_batches: bool = True) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({SERVICE_NAME: "quire", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._sent = CountingExporter(exporter)
        self._num_made = 0
        processor = BatchSpanProcessor if in_batches else SimpleSpanProcessor
        self._provider.add_span_processor(processor(cast("SpanExporter", self._sent)))
        self._tracer = self._provider.get_tracer("quire", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def sending_to(cls, endpoint: str) -> Tracer:
        """A tracer that sends over OTLP/HTTP. Raises ConfigError if OpenTelemetry is missing."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise ConfigError(MISSING) from None
        return cls(OTLPSpanExporter(endpoint=endpoint))

    def trace(self, record: RequestRecord) -> None:
        """Make the span of an ended request; none if it ran no model."""
        generation = generation_of(record)
        if generation is None:
            return
        from opentelemetry.trace import SpanKind, Status, StatusCode

        attributes = _attributes(record, generation)
        carrier = {} if record.traceparent is None else {"traceparent": record.traceparent}
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=record.begin_ns,
        )
        first = generation.usage.first_token
        if first is not None:
            at = record.begin_ns + round((first - record.begin) * 1e9)
            span.add_event("gen_ai.first_token", timestamp=at)
        if record.error_code is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=record.begin_ns + round(record.seconds * 1e9))
        self._num_made += 1

    def close(self) -> None:
        """Send the remaining spans within LAST_SECONDS; log how many are lost."""
        # the library may block for half a minute: a daemon thread runs it
        sending = try_start(self._provider.shutdown, "last-spans")
        if sending is not None:
            sending.join(LAST_SECONDS)
        if lost := self._num_made - self._sent.num_sent:
            logger.warning("%d of %d traces could not be sent and are lost", lost, self._num_made)
        if sending is None or sending.is_alive():
            self._sent.shutdown()  # no further attempts


def _attributes(record: RequestRecord, generation: GenerationRecord) -> dict[str, Any]:
    """The span's attributes by OpenTelemetry's conventions for generative AI; no prompts."""
    job, usage = generation.job, generation.usage
    sampling = job.sampling
    operation = _OPERATIONS.get(job.reply_id.partition("-")[0], "chat")
    attributes: dict[str, Any] = {
        "http.request.method": record.method,
        "url.path": record.path,
        "quire.request_id": record.request_id,
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "quire",
        "gen_ai.request.model": job.model,
        "gen_ai.request.choice.count": sampling.n,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.response.id": job.reply_id,
        "gen_ai.response.model": job.model,
        "gen_ai.response.finish_reasons": generation.finish_reason(record.error_code).split(","),
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.latency.e2e": record.seconds,
    }
    if record.status:  # else the client disconnected before there was one
        attributes["http.response.status_code"] = record.status
    if sampling.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
    if usage.first_token is not None:
        attributes["gen_ai.latency.time_to_first_token"] = usage.first_token - record.begin
    if record.error_code is not None:
        attributes["error.type"] = record.error_code
    return attributes
