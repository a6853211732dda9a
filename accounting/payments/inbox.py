"""Receive webhooks: verify each, store it under its event's id, and answer. A worker handles it later.

Only the ids of a message are stored. Everything else is fetched from Stripe when the message is handled. So an
old, reordered or repeated message cannot bring outdated facts.
"""

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from sqlalchemy.exc import IntegrityError

from accounting.payments.calls import OnCallFailpoint
from accounting.payments.errors import WebhookRefused
from accounting.payments.ledger import OpenSession
from accounting.payments.tables import StripeEvent

BODY_MAX = 256 * 1024
"""The longest webhook, in bytes. Stripe's are a few thousand."""

Source = Literal["account", "connect"]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_]+\Z")]

TOLERANCE_S = 300
_HEADER_MAX = 2_000
_TIME = re.compile(r"[0-9]{1,12}")


class _Subject(msgspec.Struct):
    id: _Id


class _Data(msgspec.Struct):
    object: _Subject


class _Message(msgspec.Struct):
    id: _Id
    type: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    livemode: bool
    data: _Data
    account: _Id | None = None


@dataclass(frozen=True, slots=True)
class Inbox:
    """Receive webhooks of both endpoints: the platform's own events, and those of connected accounts.

    Each endpoint has its own secrets: the current one and those that are being replaced. `is_live` is the mode of
    our key. `account_id` is our own account, if known.
    """

    write: OpenSession
    secrets: dict[Source, Sequence[str]]
    is_live: bool
    failpoint: OnCallFailpoint
    account_id: str | None = None
    clock_ns: Callable[[], int] = time.time_ns

    def receive(self, source: Source, body: bytes, signature: str) -> bool:
        """Store a webhook. Return False if it was stored before. Nothing of a refused webhook is stored.

        Raises:
            WebhookRefused: it is not from Stripe, not of now, of the other mode, or about another account.
        """
        if len(body) > BODY_MAX:
            raise WebhookRefused(f"a webhook may have at most {BODY_MAX} bytes")
        check_signature(body, signature, self.secrets.get(source, ()), self.clock_ns() / 1e9)
        message = self._read(source, body)
        is_new = self._store(message)
        self.failpoint("event_stored")
        return is_new

    def _read(self, source: Source, body: bytes) -> _Message:
        try:
            message = msgspec.json.decode(body, type=_Message)
        except msgspec.MsgspecError as error:
            raise WebhookRefused(f"the message is not a Stripe event: {error}") from None
        if message.livemode != self.is_live:
            sent, expected = ("live", "test") if message.livemode else ("test", "live")
            raise WebhookRefused(f"an event of {sent} mode was sent to an endpoint in {expected} mode")
        own = message.account is None or message.account == self.account_id
        if own != (source == "account"):
            raise WebhookRefused("the event belongs to another account than this endpoint's")
        return message

    def _store(self, message: _Message) -> bool:
        now_ns = self.clock_ns()
        row = StripeEvent(
            id=message.id,
            kind=message.type,
            account=message.account or "",
            object_id=message.data.object.id,
            due_ns=now_ns,
            received_ns=now_ns,
        )
        try:
            with self.write() as session, session.begin():
                if session.get(StripeEvent, message.id) is not None:
                    return False
                session.add(row)
        except IntegrityError:
            return False  # Another process stored the same message at the same moment.
        return True


def check_signature(body: bytes, header: str, secrets: Sequence[str], now_s: float) -> None:
    """Check that one of the secrets signed this body at about this time.

    Raises:
        WebhookRefused: none of them did, or the time differs from now by more than `TOLERANCE_S`.
    """
    signed_s, signatures = _parts(header)
    if not any(_is_signed(body, signed_s, signatures, secret) for secret in secrets if secret):
        raise WebhookRefused("no secret of this endpoint made the signature")
    if abs(now_s - signed_s) > TOLERANCE_S:
        raise WebhookRefused(f"the message was not signed within {TOLERANCE_S} s of this server's time")


def _parts(header: str) -> tuple[int, list[bytes]]:
    fields = [field.strip().partition("=") for field in header[:_HEADER_MAX].split(",")]
    times = [value for name, _, value in fields if name == "t"]
    if len(times) != 1 or not _TIME.fullmatch(times[0]):
        raise WebhookRefused("the Stripe-Signature header has no time")
    return int(times[0]), [value.encode() for name, _, value in fields if name == "v1"]


def _is_signed(body: bytes, signed_s: int, signatures: Sequence[bytes], secret: str) -> bool:
    signed = hmac.new(secret.encode(), f"{signed_s}.".encode() + body, hashlib.sha256).hexdigest().encode()
    # Use a list, not any(): the duration must not tell which signature matches.
    return True in [hmac.compare_digest(signed, signature) for signature in signatures]
