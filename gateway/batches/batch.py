"""A batch as it stands, and what people see of it."""

import secrets
import time
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
End = Literal["completed", "expired", "cancelled", "failed"]

STATUSES: tuple[Status, ...] = get_args(Status)
ENDS: tuple[End, ...] = get_args(End)
UNFINISHED: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
# Before an end is reached, a batch that was stopped stays in `finalizing` or `cancelling` while its files close.
CANCELLABLE: tuple[Status, ...] = ("validating", "in_progress")

WINDOW_S = 24 * 3600
"""Of `completion_window` 24h, the only one that OpenAI has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One row of the table, whose columns have the fields' names. Times are nanoseconds since the epoch."""

    id: str
    owner: str
    place: str
    key_id: str
    endpoint: str
    input_file_id: str
    status: Status
    created_ns: int
    expires_ns: int
    annotations: str | None = None
    output_lasts_s: int | None = None
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    errors: str | None = None
    in_progress_ns: int | None = None
    finalizing_ns: int | None = None
    completed_ns: int | None = None
    failed_ns: int | None = None
    expired_ns: int | None = None
    cancelling_ns: int | None = None
    cancelled_ns: int | None = None

    @property
    def token(self) -> str:
        """What its ids have in common: its files', its requests', its lines'."""
        return self.id.removeprefix("batch_")

    @property
    def output_id(self) -> str:
        return f"file-{self.token}o"

    @property
    def error_id(self) -> str:
        return f"file-{self.token}e"

    @property
    def has_ended(self) -> bool:
        return self.status in ENDS

    def line_id(self, line: int) -> str:
        """What the answer to a line is called in the output."""
        return f"batch_req_{self.token}_{line}"

    def request_id(self, line: int, attempt: int) -> str:
        """The same for the same attempt, whoever makes it when: what it costs is booked once."""
        return f"req_{self.token}_{line}_{attempt}" if attempt else f"req_{self.token}_{line}"

    def as_api(self) -> dict[str, Any]:
        """As OpenAI shows it. Output files are shown when they are whole."""
        errors = orjson.loads(self.errors) if self.errors else None
        times = {f"{status}_at": _seconds(getattr(self, f"{status}_ns")) for status in STATUSES[1:]}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": errors} if errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_id if self.has_ended and self.completed else None,
            "error_file_id": self.error_id if self.has_ended and self.failed else None,
            "created_at": _seconds(self.created_ns),
            "expires_at": _seconds(self.expires_ns),
            **times,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": orjson.loads(self.annotations) if self.annotations else None,
        }


def new_batch_id() -> str:
    """Later ones sort after earlier ones."""
    return f"batch_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


def _seconds(at_ns: int | None) -> int | None:
    return None if at_ns is None else at_ns // 10**9
