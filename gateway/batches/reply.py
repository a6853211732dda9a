"""The result of one request of a batch, and whether it is worth asking again."""

from dataclasses import dataclass
from typing import Any, Literal

import orjson

_TRY_AGAIN_MAX_S = 60.0
_SAID_CHARS = 2000

Code = Literal["batch_expired", "batch_cancelled", "request_timeout"]


@dataclass(frozen=True, slots=True)
class BatchReply:
    """An answer of the gateway, or the reason why the request was not asked.

    `is_limit` means that a limit of the caller is reached, which also holds for its other requests.
    `retry_after_s` is None if no retry time was given.
    """

    status: int = 0
    request_id: str = ""
    body: bytes = b""
    retry_after_s: float | None = None
    is_limit: bool = False
    code: Code | None = None
    message: str = ""

    @property
    def is_good(self) -> bool:
        return self.status == 200 and self.code is None

    @property
    def response(self) -> dict[str, Any] | None:
        if self.code:
            return None
        return {"status_code": self.status, "request_id": self.request_id, "body": _as_json(self.body)}

    @property
    def error(self) -> dict[str, str] | None:
        return {"code": self.code, "message": self.message} if self.code else None

    @property
    def is_passing(self) -> bool:
        """Return whether the same request may succeed later."""
        return self.code is None and (self.status in (408, 425, 429) or self.status >= 500)


def pause_s(reply: BatchReply, attempt: int) -> float:
    """Return how long to wait before another try: the given time, or longer each time, up to a minute."""
    return max(reply.retry_after_s or 0.0, min(_TRY_AGAIN_MAX_S, 2.0**attempt))


def _as_json(body: bytes) -> Any:
    """Return a body for a line: JSON unchanged, anything else as an error in OpenAI's form."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        text = body[:_SAID_CHARS].decode("utf-8", "replace")
        return {"error": {"message": text, "type": "upstream_error", "param": None, "code": "not_json"}}
