"""Every Prometheus metric by name; docs/operations.md has the same list, and a test compares them."""

from typing import Literal, NamedTuple, TypeAlias

from gateway.metrics.tallies import Count, Counter, Gauge, Histogram, Instrument, Labels, Spread

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)
# Predicted over measured: 1 is exact, 2 predicts twice the actual time.
_RATIOS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.1, 1.25, 1.5, 2, 3, 5, 10)

_COUNT_RATIOS = (0.5, 0.8, 0.9, 0.95, 0.98, 1, 1.02, 1.05, 1.1, 1.25, 1.5, 2, 10)

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Foretold: TypeAlias = Literal["first_token", "token"]


class Metrics:
    """One set per gateway, so that two in one process do not mix. Adding to a metric takes a few operations."""

    def __init__(self) -> None:
        self.requests = _counter("requests", "Requests by lane and outcome.", "lane", "outcome")
        self.request_seconds = _histogram("request_seconds", "Time of a whole request.", _SECONDS, "lane")
        self.first_token_seconds = _histogram(
            "first_token_seconds", "Time to the first byte of an answer.", _SECONDS, "lane"
        )
        self.token_seconds = _histogram(
            "token_seconds",
            "Time per token of a streamed answer, from its second token on.",
            _TOKEN_SECONDS,
            "lane",
        )
        self.tokens = _counter("tokens", "Tokens by lane and kind (prompt, completion).", "lane", "kind")
        self.in_flight = _gauge("in_flight", "Requests being answered.")
        self.queue_depth = _gauge("queue_depth", "Requests waiting for a slot.")
        self.queue_seconds = _histogram("queue_seconds", "Time that requests waited for a slot.", _SECONDS)
        self.limit_refusals = _counter("limit_refusals", "Requests rejected by a limit, by its metric.", "measure")
        self.cache_hits = _counter("cache_hits", "Answers from the cache, by kind of match.", "kind")
        self.lane_failures = _counter("lane_failures", "Backends that failed before their first byte.", "lane")
        self.upstream_errors = _counter(
            "upstream_errors", "Backend errors by lane and kind, before or during an answer.", "lane", "kind"
        )
        self.preemptible_jobs = _counter(
            "preemptible_requests",
            "Preemptible requests by outcome (complete, failed, interrupted, preempted, refused).",
            "outcome",
        )
        self.hedges = _counter(
            "hedges", "Requests to a second backend (hedges), by result (won, lost, moved).", "result"
        )
        self.continuations = _counter(
            "continuations",
            "Interrupted answers continued on another backend, by lane and result.",
            "lane",
            "result",
        )
        self.first_token_error_ratio = _histogram(
            "first_token_error_ratio", "Predicted divided by measured time to first token.", _RATIOS, "lane"
        )
        self.token_error_ratio = _histogram(
            "token_error_ratio", "Predicted divided by measured time per token.", _RATIOS, "lane"
        )
        self.metering_difference_ratio = _histogram(
            "metering_difference_ratio",
            "A backend's own token count divided by a tokenizer's count of its answer.",
            _COUNT_RATIOS,
            "lane",
        )
        self.own_cost_nano = _gauge(
            "own_cost_nano", "Cost of one second of work on your machines, in nano-USD, by lane.", "lane"
        )
        self.hold_extensions = _counter(
            "hold_extensions", "Extensions of holds during a stream, by result.", "result"
        )
        self.charged_nano = _counter("charged_nano", "Amount charged to callers, in nano-USD.")
        self.ledger_lag = _gauge("ledger_lag", "Ended requests and journal entries that wait to be written.")
        self.ledger_leader = _gauge("ledger_leader", "1 if this gateway writes the ledger, else 0.")
        self.ledger_epoch = _gauge("ledger_epoch", "Number of changes of the shared ledger's leader.")
        self.ledger_dropped_groups = _gauge(
            "ledger_dropped_groups", "Groups of other gateways' entries dropped because of their age."
        )
        self.ledger_broken_rules = _gauge(
            "ledger_broken_rules", "1 for each ledger rule that was broken at the last check.", "rule"
        )
        self.ledger_inspected_seconds = _gauge(
            "ledger_inspected_seconds", "Time since the last check of the ledger, in seconds."
        )
        self.ledger_checkpoint_block = _gauge(
            "ledger_checkpoint_block", "Number of the newest signed ledger block that this gateway knows."
        )
        self.ledger_unproven_events = _gauge(
            "ledger_unproven_events", "Journal entries that are in no signed block."
        )
        self.ledger_unproven_seconds = _gauge(
            "ledger_unproven_seconds", "Age of the oldest journal entry in no signed block, in seconds."
        )
        self.spooled_settlements = _counter(
            "spooled_settlements", "Settlements kept on disk because the ledger was unavailable."
        )
        self.request_log_drops = _counter(
            "request_log_drops", "Requests missing from the request log because it was full."
        )
        self.payments_inbox = _gauge("payments_inbox", "Queued and failed Stripe webhooks, by status.", "status")
        self.payments_unmatched = _gauge(
            "payments_unmatched", "Mismatches between Stripe and the ledger at the last reconciliation."
        )
        self.payments_difference_nano = _gauge(
            "payments_difference_nano",
            "Stripe's balance minus the ledger's at the last reconciliation, in nano-USD.",
        )
        self.payments_reconciled_seconds = _gauge(
            "payments_reconciled_seconds", "Time since the last reconciliation, in seconds."
        )
        self.cluster_nodes = _gauge("cluster_nodes", "Machines in the cluster.")
        self.cluster_epoch = _gauge("cluster_epoch", "Number of the cluster's current plan.")

        self._lanes: dict[str, LaneTallies] = {}

    @classmethod
    def create(cls) -> "Metrics":
        return cls()

    def foretold(self, lane: str, what: Foretold, predicted_s: float, measured_s: float) -> None:
        """Record the accuracy of a prediction: the predicted time over the measured one."""
        spread = self.first_token_error_ratio if what == "first_token" else self.token_error_ratio
        if measured_s > 0:
            spread.labels(lane).observe(predicted_s / measured_s)

    @property
    def instruments(self) -> list[Instrument]:
        return [each for each in vars(self).values() if isinstance(each, Counter | Gauge | Histogram)]

    def of_lane(self, lane: str) -> "LaneTallies":
        """Return the series of one lane, to which every answer adds."""
        tallies = self._lanes.get(lane)
        if tallies is None:
            tallies = self._lanes[lane] = LaneTallies(
                self.request_seconds.labels(lane),
                self.first_token_seconds.labels(lane),
                self.token_seconds.labels(lane),
                self.tokens.labels(lane, "prompt"),
                self.tokens.labels(lane, "completion"),
            )
        return tallies

    def render(self) -> bytes:
        """Return everything in Prometheus' text format, for `CONTENT_TYPE`."""
        lines: list[str] = []
        for each in self.instruments:
            name = each.name + ("_total" if each.kind == "counter" else "")
            lines += (f"# HELP {name} {each.text}", f"# TYPE {name} {each.kind}")
            lines += [_line(each.name, *sample) for sample in each.samples()]
        return "\n".join([*lines, ""]).encode()


def _line(name: str, suffix: str, labels: Labels, values: Labels, value: float) -> str:
    quoted = ",".join(f'{label}="{each.translate(_ESCAPED)}"' for label, each in zip(labels, values, strict=True))
    return f"{name}{suffix}{{{quoted}}} {float(value)}" if quoted else f"{name}{suffix} {float(value)}"


class LaneTallies(NamedTuple):
    """The series of one lane."""

    request_seconds: Spread
    first_token_seconds: Spread
    token_seconds: Spread
    prompt_tokens: Count
    completion_tokens: Count


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"millrace_{name}", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"millrace_{name}", text, labels)


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"millrace_{name}", text, bounds, labels)
