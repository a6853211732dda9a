"""What Ollama's clients ask before the first word and after the last: a model in memory, or out of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from runtime.errors import RequestInvalid

Wanted = Literal["load", "unload"]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A wish that needs no answer of a model.

    `body` is a chat of nothing, in our own shape: it says which model is meant, and where it may be. `nothing` are
    the answer's fields for what the model says. `keep_alive` is how long the model is to stay once loaded, in
    seconds or as Go writes durations; None leaves it to the backend.
    """

    wanted: Wanted
    model: str
    body: bytes
    nothing: dict[str, Any]
    keep_alive: float | str | None = None


class UpkeepAsked(RequestInvalid):
    """There is no question in the request, but this wish; invalid for those who can only answer questions."""

    def __init__(self, upkeep: Upkeep, field: str) -> None:
        super().__init__(f"{field}: missing", param=field, code="missing_required_parameter")
        self.upkeep = upkeep


def answer_of(upkeep: Upkeep) -> bytes:
    """One object, however the request would have its answer."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    done = {"done": True, "done_reason": upkeep.wanted}
    return msgspec.json.encode({"model": upkeep.model, "created_at": now, **upkeep.nothing, **done})
