"""One line of JSON for every request, written in batches: ids, counts and times, never any prompt text."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO

from msgspec import Struct
from msgspec.json import Encoder

from gateway.billing.finished_request import Ended
from gateway.billing.settlement_worker import Booked
from runtime.logs import log_sink


class AccessLine(Struct, omit_defaults=True):
    """A finished request. `started` is when it came, in UTC; an answer has no `error`.

    `served_model` is the model that answered, if it is not the requested one.
    """

    event: str
    started: str
    request_id: str
    key: str
    user: str
    kind: str
    model: str
    lane: str
    backend: str
    status: int
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    duration_ms: int
    ttft_ms: int | None = None
    charge_nano: int = 0
    error: str = ""
    served_model: str = ""
    address: str = ""


class AccessLog:
    """Writes to the log's output; a witness of the bookkeeper's batches."""

    def __init__(self, sink: TextIO | None = None) -> None:
        self._sink = sink or log_sink()
        self._encoder = Encoder()

    def write(self, batch: Iterable[Booked]) -> None:
        """Write all lines of a batch at once."""
        lines = [_line(ended) for ended, _ in batch]
        self._sink.write(self._encoder.encode_lines(lines).decode())
        self._sink.flush()


def _line(ended: Ended) -> AccessLine:
    usage = ended.settlement.usage
    return AccessLine(
        "request",
        _utc(usage.started_ns),
        usage.request_id,
        ended.key_prefix,
        usage.user_id,
        ended.kind,
        usage.model,
        usage.lane,
        ended.backend,
        ended.status,
        usage.outcome,
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        usage.duration_ms,
        usage.ttft_ms,
        ended.settlement.charge_nano,
        ended.problem.encode(errors="replace").decode(),
        usage.served_model or "",
        ended.address,
    )


def _utc(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, 10**9)
    return f"{_second(seconds)}.{rest_ns // 10**6:03d}Z"


@lru_cache(maxsize=16)
def _second(seconds: int) -> str:
    """Format a second's time stamp, cached, because thousands of requests share it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
