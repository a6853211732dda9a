"""Check whether a key may speak for an identity. A signature shows the writer; this decides whether it counts."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from market.errors import StatementInvalid
from market.protocol.records.envelope import Record

Standing = Literal["current", "retired", "revoked", "unknown"]
StandingOf: TypeAlias = Callable[[str, str], Standing]
"""Called with an identity and a public key, both in hex."""


def check_speaker(record: Record, issuer: str, standing: StandingOf) -> None:
    """Check that a statement is by this identity, with a key that is or was entitled to speak for it.

    Raises:
        StatementInvalid: it is not.
    """
    if record.issuer != issuer:
        raise StatementInvalid(f"this {record.kind} must be signed by {issuer[:16]}, not by {record.issuer[:16]}")
    found = standing(record.issuer, record.key)
    if found not in ("current", "retired"):
        raise StatementInvalid(f"the key of this {record.kind} is {found} for {issuer[:16]}")
