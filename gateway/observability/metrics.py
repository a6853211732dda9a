"""What can be seen from outside: structured logs with request ids, and every Prometheus metric by name."""

import logging
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from cluster.nodes.process import log_sink

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


def configure_logs(level: str, form: str) -> None:
    """Send our own and the libraries' log lines to stderr in one form; stdout stays for data."""
    number = logging.getLevelNamesMapping()[level.upper()]
    sink = log_sink()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if form == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sink),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sink)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)


@dataclass(frozen=True, slots=True)
class Metrics:
    """One registry per gateway, so that two in one process do not mix."""

    registry: CollectorRegistry
    requests: Counter
    request_seconds: Histogram
    first_token_seconds: Histogram
    tokens: Counter
    in_flight: Gauge
    lane_failures: Counter
    charged_nano: Counter
    cluster_nodes: Gauge
    cluster_epoch: Gauge
    books_lag: Gauge

    @classmethod
    def create(cls) -> "Metrics":
        registry = CollectorRegistry()
        return cls(
            registry=registry,
            requests=Counter(
                "millrace_requests", "Requests by lane and outcome.", ["lane", "outcome"], registry=registry
            ),
            request_seconds=Histogram(
                "millrace_request_seconds",
                "Time of a whole request.",
                ["lane"],
                buckets=_SECONDS,
                registry=registry,
            ),
            first_token_seconds=Histogram(
                "millrace_first_token_seconds",
                "Time to the first byte of an answer.",
                ["lane"],
                buckets=_SECONDS,
                registry=registry,
            ),
            tokens=Counter(
                "millrace_tokens",
                "Tokens by lane and kind (prompt, completion).",
                ["lane", "kind"],
                registry=registry,
            ),
            in_flight=Gauge("millrace_in_flight", "Requests being answered.", registry=registry),
            lane_failures=Counter(
                "millrace_lane_failures",
                "Backends that failed before their first byte.",
                ["lane"],
                registry=registry,
            ),
            charged_nano=Counter("millrace_charged_nano", "Charged to callers, in nano-USD.", registry=registry),
            cluster_nodes=Gauge("millrace_cluster_nodes", "Machines in the cluster.", registry=registry),
            cluster_epoch=Gauge("millrace_cluster_epoch", "Times the cluster was planned.", registry=registry),
            books_lag=Gauge("millrace_books_lag", "Postings that wait to be written.", registry=registry),
        )

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
