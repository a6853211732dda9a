"""Spans and metrics in OpenTelemetry's GenAI conventions, from ended requests, sent by the SDK's threads.

Only loaded if the settings name a collector: the SDK is an extra (`otel`).
"""

from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from gateway.billing.finished_request import Ended
from gateway.billing.settlement_worker import Booked
from gateway.settings.telemetry import TelemetrySettings

# The conventions' names of request kinds; other kinds keep their own names.
_OPERATIONS = {"chat": "chat", "completion": "text_completion", "embedding": "embeddings"}
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKENS = tuple(4**power for power in range(14))
_EXPORT_EVERY_MS = 15_000
_EXPORT_TIMEOUT_S = 10.0

Attributes = dict[str, AttributeValue]


class Telemetry:
    """A witness of the bookkeeper's batches. It never exports prompts or answers."""

    def __init__(self, settings: TelemetrySettings) -> None:
        assert settings.otlp_endpoint
        base = settings.otlp_endpoint.rstrip("/")
        resource = Resource.create({"service.name": settings.service_name})
        spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=_EXPORT_TIMEOUT_S)
        metrics = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=_EXPORT_TIMEOUT_S)
        self._traces = TracerProvider(resource=resource)
        self._traces.add_span_processor(BatchSpanProcessor(spans))
        reader = PeriodicExportingMetricReader(metrics, export_interval_millis=_EXPORT_EVERY_MS)
        self._meters = MeterProvider([reader], resource=resource)
        self._tracer = self._traces.get_tracer("millrace")
        self._propagator = TraceContextTextMapPropagator()
        self._tokens = self._histogram("gen_ai.client.token.usage", "{token}", _TOKENS)
        self._duration = self._histogram("gen_ai.client.operation.duration", "s", _SECONDS)
        self._first_token = self._histogram("gen_ai.server.time_to_first_token", "s", _FIRST_TOKEN_S)
        self._token = self._histogram("gen_ai.server.time_per_output_token", "s", _TOKEN_S)

    def write(self, batch: Iterable[Booked]) -> None:
        for ended, _ in batch:
            attributes = _attributes(ended)
            self._trace(ended, attributes)
            self._measure(ended, attributes)

    def stop(self) -> None:
        """Send pending data, as far as the collector accepts it within the exporters' time limits."""
        self._traces.shutdown()
        self._meters.shutdown()

    def _histogram(self, name: str, unit: str, bounds: tuple[float, ...]) -> Histogram:
        meter = self._meters.get_meter("millrace")
        return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=bounds)

    def _trace(self, ended: Ended, attributes: Attributes) -> None:
        usage = ended.settlement.usage
        parent = self._propagator.extract({"traceparent": ended.traceparent}) if ended.traceparent else None
        span = self._tracer.start_span(
            f"{_operation(ended)} {usage.model}",
            parent,
            SpanKind.CLIENT,
            {
                **attributes,
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "http.response.status_code": ended.status,
                "millrace.request_id": usage.request_id,
                "millrace.lane": usage.lane,
            },
            start_time=usage.started_ns,
        )
        if ended.finish_reasons:
            span.set_attribute("gen_ai.response.finish_reasons", ended.finish_reasons)
        if "error.type" in attributes:
            span.set_status(Status(StatusCode.ERROR, ended.problem))
        span.end(usage.started_ns + usage.duration_ms * 10**6)

    def _measure(self, ended: Ended, attributes: Attributes) -> None:
        usage = ended.settlement.usage
        self._duration.record(usage.duration_ms / 1000, attributes)
        self._tokens.record(usage.prompt_tokens, {**attributes, "gen_ai.token.type": "input"})
        self._tokens.record(usage.completion_tokens, {**attributes, "gen_ai.token.type": "output"})
        if usage.ttft_ms is None or not ended.is_stream:
            return
        self._first_token.record(usage.ttft_ms / 1000, attributes)
        if usage.completion_tokens > 1:
            spoken_s = (usage.duration_ms - usage.ttft_ms) / 1000
            self._token.record(spoken_s / (usage.completion_tokens - 1), attributes)


def _attributes(ended: Ended) -> Attributes:
    usage = ended.settlement.usage
    attributes: Attributes = {
        "gen_ai.operation.name": _operation(ended),
        "gen_ai.provider.name": usage.provider,
        "gen_ai.request.model": usage.model,
        "server.address": ended.backend,
    }
    if usage.ttft_ms is not None:  # else no backend answered
        attributes["gen_ai.response.model"] = usage.served_model or usage.model
    if usage.outcome in ("failed", "refused"):
        attributes["error.type"] = str(ended.status) if ended.status != 200 else usage.outcome
    return attributes


def _operation(ended: Ended) -> str:
    return _OPERATIONS.get(ended.kind, ended.kind)
