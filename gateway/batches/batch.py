"""The state of a batch, and its form in the API."""

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
# A stopped batch stays in `finalizing` or `cancelling` while its files are closed.
CANCELLABLE: tuple[Status, ...] = ("validating", "in_progress")

WINDOW_S = 24 * 3600
"""The `completion_window` of 24h, the only one that OpenAI offers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One row of the table, whose columns have the fields' names. Times are nanoseconds since the epoch."""

    id: str
    owner: str
    folder_id: str
    key_id: str
    endpoint: str
    input_file_id: str
    status: Status
    created_ns: int
    expires_ns: int
    annotations: str | None = None
    output_lifetime_s: int | None = None
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
        """Return what the ids of its files, requests and lines have in common."""
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
        """Return the id of a line's answer in the output."""
        return f"batch_req_{self.token}_{line}"

    def request_id(self, line: int, attempt: int) -> str:
        """Return the request id of an attempt. It is the same after a restart, so that its cost is booked once."""
        return f"req_{self.token}_{line}_{attempt}" if attempt else f"req_{self.token}_{line}"

    def as_api(self) -> dict[str, Any]:
        """Return the batch in OpenAI's form. Output files appear once they are complete."""
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
    """Return a new id; later ones sort after earlier ones."""
    return f"batch_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


def _seconds(at_ns: int | None) -> int | None:
    return None if at_ns is None else at_ns // 10**9
