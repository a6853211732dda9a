"""Who is told of ended requests: a line each in the access log, spans and metrics at an OTLP collector."""

import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.billing.finished_request import Ended, Ending
from gateway.billing.settlement_worker import Booked
from gateway.dialects.openai import Kind, read_request
from gateway.identity.caller import Caller
from gateway.lanes.base import Call, Meter, Offer
from gateway.requests.context import Asked, RequestContext
from gateway.requests.settlement import end
from gateway.settings.telemetry import TelemetrySettings
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.factory import open_telemetry

RAW = b'{"model": "tiny", "stream": true, "messages": [{"role": "user", "content": "secret words"}]}'
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def booked(ending: Ending, first_byte_s: float | None = 0.5, **changes: Any) -> Booked:
    caller = Caller("key-1", "mr-abc", "ann", "lab", frozenset({"pool"}))
    call = Call("req_1", "chat", read_request("chat", RAW), RAW)
    began_s = time.perf_counter() - 2
    asked = Asked(Offer("pool", "desk", "tiny"))
    context = RequestContext(call, caller, time.time_ns(), began_s, asked=asked, opened_s=first_byte_s)
    meter = Meter(12, 3, 31, "upstream", is_complete=True, finish_reasons=("stop", "length"))
    ended = end(context, meter, ending)
    fields = {name: getattr(ended, name) for name in ended.__struct_fields__} | changes
    return Booked(Ended(**fields), 7)


def test_the_access_log_has_a_line_for_each_and_no_word_of_a_prompt() -> None:
    sink = io.StringIO()
    AccessLog(sink).write([booked(Ending(200, "complete")), booked(Ending(502, "failed", 'broke "off"\n\udc9b'))])
    lines = sink.getvalue().splitlines()
    assert "secret" not in sink.getvalue()
    first, second = (json.loads(line) for line in lines)
    assert (first["request_id"], first["key"], first["lane"], first["backend"]) == (
        "req_1",
        "mr-abc",
        "pool",
        "desk",
    )
    assert (first["prompt_tokens"], first["completion_tokens"], first["ttft_ms"]) == (12, 31, 500)
    assert "error" not in first
    assert (second["status"], second["error"]) == (502, 'broke "off"\n?')


@pytest.mark.parametrize(
    ("kind", "fields", "is_stream"),
    [
        ("embedding", {"input": "Hi", "stream": True}, False),
        ("speech", {"input": "Hi", "voice": "v", "stream_format": "sse"}, True),
    ],
)
def test_only_an_answer_in_events_counts_as_a_stream(kind: Kind, fields: dict[str, Any], is_stream: bool) -> None:
    raw = json.dumps({"model": "tiny", **fields}).encode()
    caller = Caller("key-1", "mr-abc", "ann", "lab", frozenset({"pool"}))
    context = RequestContext.begin(Call("req_1", kind, read_request(kind, raw), raw), caller)
    assert end(context, Meter(), Ending(200, "complete")).is_stream is is_stream


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP on a free port."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/traces":
            self.server.traces.append(ExportTraceServiceRequest.FromString(body))
        elif self.path == "/v1/metrics":
            self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        yield collector
        collector.shutdown()
        thread.join(60)


def test_a_collector_gets_spans_and_metrics_by_the_conventions(collector: Collector) -> None:
    telemetry = open_telemetry(TelemetrySettings(otlp_endpoint=f"http://127.0.0.1:{collector.server_port}"))
    telemetry.write(
        [booked(Ending(200, "complete"), traceparent=PARENT), booked(Ending(502, "failed", "was down"), None)]
    )
    telemetry.stop()
    spans = [
        span for sent in collector.traces for each in sent.resource_spans for span in each.scope_spans[0].spans
    ]
    good, bad = (
        {item.key: item.value.string_value or item.value.int_value for item in span.attributes} for span in spans
    )
    assert [span.name for span in spans] == ["chat tiny", "chat tiny"]
    assert spans[0].trace_id.hex() == PARENT.split("-")[1]
    assert spans[0].parent_span_id.hex() == PARENT.split("-")[2]
    assert 1900 < (spans[0].end_time_unix_nano - spans[0].start_time_unix_nano) / 10**6 < 3000
    assert good["gen_ai.operation.name"] == "chat"
    assert good["gen_ai.request.model"] == "tiny"
    assert (good["gen_ai.usage.input_tokens"], good["gen_ai.usage.output_tokens"]) == (12, 31)
    assert good["server.address"] == "desk"
    assert "error.type" not in good
    assert good["gen_ai.response.model"] == "tiny"
    reasons = next(item.value for item in spans[0].attributes if item.key == "gen_ai.response.finish_reasons")
    assert [value.string_value for value in reasons.array_value.values] == ["stop", "length"]
    assert bad["error.type"] == "502"
    assert "gen_ai.response.model" not in bad
    metrics = {
        metric.name
        for sent in collector.metrics
        for each in sent.resource_metrics
        for scope in each.scope_metrics
        for metric in scope.metrics
    }
    assert metrics >= {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
    }


def test_nothing_of_it_is_loaded_unless_it_is_wanted() -> None:
    heavy = "[name for name in sys.modules if name.split('.')[0] in ('opentelemetry', 'prometheus_client')]"
    script = f"import sys, gateway.billing.bookkeeper, gateway.telemetry.factory; print({heavy})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
