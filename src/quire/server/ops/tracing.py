"""OpenTelemetry: one span for each request that used the model, made when it has ended.

The extra `trace` brings the libraries; without an endpoint they are not even imported. A request's
`traceparent` header makes its span part of the caller's trace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from quire.errors import ConfigError
from quire.server.http.request_record import RequestRecord
from quire.server.ops.access_log import finish_reason
from quire.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)

LAST_SECONDS = 1.0  # at the end, for what has not been sent; a dead collector holds nobody up

MISSING = (
    "otlp_traces_endpoint needs OpenTelemetry, which is not installed; install it with "
    "`pip install '.[trace]'` in the source tree, or leave the setting out"
)

# what the conventions call each path; the others are chats in one form or another
_OPERATIONS = {"/v1/completions": "text_completion", "/v1/embeddings": "embeddings"}


class Counted:
    """An exporter that knows how many spans have arrived."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.num_sent = 0
        self.shutdown = exporter.shutdown
        self.force_flush = exporter.force_flush

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them, and count them if that went well."""
        result = self._exporter.export(spans)
        if result.name == "SUCCESS":
            self.num_sent += len(spans)
        return result


class Tracer:
    """Makes spans, which are sent in batches by a thread of their own, or each where it is made."""

    def __init__(self, exporter: SpanExporter, *, in_batches: bool = True) -> None:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({SERVICE_NAME: "quire", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._sent = Counted(exporter)
        self._num_made = 0
        processor = BatchSpanProcessor if in_batches else SimpleSpanProcessor
        self._provider.add_span_processor(processor(cast("SpanExporter", self._sent)))
        self._tracer = self._provider.get_tracer("quire", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def sending_to(cls, endpoint: str) -> Tracer:
        """Send over OTLP/HTTP. Raises ConfigError if the extra is not installed."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            raise ConfigError(MISSING) from None
        return cls(OTLPSpanExporter(endpoint=endpoint))

    def trace(self, record: RequestRecord) -> None:
        """One request has ended."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        attributes = _attributes(record)
        carrier = {} if record.traceparent is None else {"traceparent": record.traceparent}
        span = self._tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=record.begin_ns,
        )
        first = record.usage.first_token
        if first is not None:
            at = record.begin_ns + round((first - record.begin) * 1e9)
            span.add_event("gen_ai.first_token", timestamp=at)
        if record.error_code is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=time.time_ns())
        self._num_made += 1

    def close(self) -> None:
        """Send what has not been sent, within LAST_SECONDS; what is lost is told in the log."""
        # the library waits up to half a minute, so it waits in a thread that nobody waits for
        sending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        sending.start()
        sending.join(LAST_SECONDS)
        if lost := self._num_made - self._sent.num_sent:
            logger.warning("%d of %d traces could not be sent and are lost", lost, self._num_made)
        if sending.is_alive():
            self._sent.shutdown()  # no further attempts


def _attributes(record: RequestRecord) -> dict[str, Any]:
    """What the conventions for generative AI call these figures; no prompts, no answers."""
    job = record.job
    assert job is not None
    usage, sampling = record.usage, job.sampling
    operation = _OPERATIONS.get(record.path, "chat")
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
        "gen_ai.response.finish_reasons": finish_reason(record).split(","),
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.latency.e2e": record.seconds,
    }
    if record.status:  # else the client left before there was one
        attributes["http.response.status_code"] = record.status
    if sampling.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
    if record.usage.first_token is not None:
        attributes["gen_ai.latency.time_to_first_token"] = record.usage.first_token - record.begin
    if record.error_code is not None:
        attributes["error.type"] = record.error_code
    return attributes
