"""The errors that a worker answers with, in the shape of OpenAI's."""

from dataclasses import dataclass

import orjson

MESSAGE_CHARS_MAX = 1_000


@dataclass(eq=False)
class Refusal(Exception):
    """The error that the gateway gets instead of an answer; it never contains a key."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: str | None = None
    model: str | None = None
    """The requested model, for the log alone."""

    def body(self) -> bytes:
        kind = _KINDS.get(self.status, "upstream_error")
        return orjson.dumps(
            {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
        )


class BrokenOff(Exception):
    """A provider's answer ended before the provider said so."""


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "server_error",
}
