"""Verify that a webhook is from Stripe: signed within minutes of now, with one of the known secrets."""

import hashlib
import hmac
import re
from collections.abc import Sequence

from accounting.payments.errors import WebhookRefused

TOLERANCE_S = 300
_HEADER_MAX = 2_000
_TIME = re.compile(r"[0-9]{1,12}")


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
