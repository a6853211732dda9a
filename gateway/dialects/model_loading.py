"""Requests of Ollama's clients to load a model into memory or to unload it, without a question."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from runtime.errors import RequestInvalid
from runtime.times import as_seconds

LoadAction = Literal["load", "unload"]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A request to load or unload a model, which needs no answer from the model.

    `body` is an empty chat in OpenAI's shape: it names the model, and the lanes where it may be. `nothing` has the
    answer's empty text fields. `keep_alive` is how long the loaded model stays, in seconds or as Go writes
    durations; None leaves it to the backend.
    """

    action: LoadAction
    model: str
    body: bytes
    nothing: dict[str, Any]
    keep_alive: float | str | None = None


def keep_alive_s(keep_alive: float | str | None) -> float | None:
    """Return `keep_alive` in seconds; negative for ever. None if it is missing, or no duration."""
    return as_seconds(keep_alive) if isinstance(keep_alive, str) else keep_alive


class UpkeepAsked(RequestInvalid):
    """Raised if the request has no question and only loads or unloads.

    It is an error for routes that only answer questions.
    """

    def __init__(self, upkeep: Upkeep, field: str) -> None:
        super().__init__(f"{field}: missing", param=field, code="missing_required_parameter")
        self.upkeep = upkeep


def answer_of(upkeep: Upkeep) -> bytes:
    """Return one JSON object, even if the request asked for a stream."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    done = {"done": True, "done_reason": upkeep.action}
    return msgspec.json.encode({"model": upkeep.model, "created_at": now, **upkeep.nothing, **done})
