"""The transport of one job's answer: the buyer's own HTTP request, or a relay that the seller polls for work."""

from typing import Protocol

import msgspec

from market.protocol.channels.admission import Reason
from market.protocol.channels.admission import Refusal as VoucherRefusal
from market.protocol.channels.job import Code

_PAYMENT_REQUIRED = 402
_STATUS: dict[Code, int] = {
    "malformed": 400,
    "too_long": 400,
    "refused": 400,
    "superseded": 409,
    "full": 429,
    "content": 451,
    "failed": 502,
    "not_idle": 503,
    "preempted": 503,
    "draining": 503,
}
_RETRY_AFTER_S: dict[Code, int] = {"full": 2, "not_idle": 60, "preempted": 60, "draining": 600}


class Gone(Exception):
    """The buyer has disconnected."""


class JobRefused(Exception):
    """The seller does not answer, or stops answering; has a code for programs and a sentence for users."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message

    @classmethod
    def of_voucher(cls, refusal: VoucherRefusal) -> "JobRefused":
        reason: Reason = refusal.reason
        return cls(reason, f"{refusal.sentence[0].upper()}{refusal.sentence[1:]}.")

    @property
    def status(self) -> int:
        """Return the HTTP status; problems with a voucher are payment problems."""
        return _STATUS.get(self.code, _PAYMENT_REQUIRED)

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if seconds := _RETRY_AFTER_S.get(self.code):
            headers.append((b"retry-after", b"%d" % seconds))
        return headers

    def body(self) -> bytes:
        return msgspec.json.encode({"error": {"code": self.code, "message": self.message}})


class Carrier(Protocol):
    """One job's connection back to its buyer. Whatever `send` has accepted counts as delivered."""

    async def refuse(self, refused: JobRefused) -> None:
        """Refuse to answer; nothing was sent before."""

    async def begin(self) -> None:
        """Begin an answer, which consists of events. Raises Gone."""

    async def send(self, event: bytes) -> None:
        """Send one event, with its empty line; return once the network has accepted it. Raises Gone."""

    async def gone(self) -> None:
        """Return as soon as the buyer has hung up."""
