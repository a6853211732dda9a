"""Define the envelope of everything that gateways sign: the issuer, the kind, the revision, and the expiry.

A record is a JSON object in its only canonical form. Any other form is refused, so a record cannot be changed into
an equivalent one. The signature is Ed25519 over `DOMAIN` and the canonical form of all other members. The record's
digest is the SHA-256 of the same bytes. Unknown members are signed and kept like the others.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from accounting.proofs.signing_key import Signer, is_key, is_signed
from market.errors import RecordInvalid
from market.protocol.records.amounts import read_amount, write_amount
from market.protocol.records.canonical import INTEGER_MAX, canonical

DOMAIN = b"millrace market record\n"
RECORD_BYTES_MAX = 2**14

_MISSING = re.compile("Object missing required field `(.+)`")
_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS

Kind = Literal[
    "founding",
    "rotation",
    "revocation",
    "listing",
    "allocation",
    "credit_line",
    "voucher",
    "receipt",
    "payment",
    "findings",
]

LIFETIME_MAX_MS: dict[Kind, int | None] = {
    "founding": None,
    "rotation": None,
    "revocation": None,
    "listing": 10 * _MINUTE_MS,
    "allocation": 30 * _DAY_MS,
    "credit_line": 366 * _DAY_MS,
    "voucher": None,
    "receipt": None,
    "payment": None,
    "findings": 2 * _DAY_MS,
}
"""The longest lifetime of a record of each kind, in ms; None for permanent ones."""

Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""32 bytes: a SHA-256, an identity or a public key."""
Hex64 = Annotated[str, Meta(pattern=r"^[0-9a-f]{128}\Z")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._@:-]{1,96}\Z")]
Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]

B = TypeVar("B", bound=Struct)


class _Envelope(Struct, frozen=True):
    v: Literal[1]
    kind: Kind
    issuer: Hex32
    key: Hex32
    name: Name
    revision: Count
    made_ms: Count
    expires_ms: Count | None
    body: dict[str, Any]
    signature: Hex64


@dataclass(frozen=True, slots=True)
class Record:
    """A record with a valid signature: `key` signed it, in the name of `issuer`.

    The identity's history decides whether that key may speak for it. `name` distinguishes records of one kind and
    issuer. `revision` tells which of those with the same name is the newest. Times are the issuer's. `digest`
    covers the signed bytes, so a second signature over the same members makes no second record.
    """

    kind: Kind
    issuer: str
    key: str
    name: str
    revision: int
    made_ms: int
    expires_ms: int | None
    body: bytes
    raw: bytes
    digest: str

    def read(self, kind: Kind, shape: type[B]) -> B:
        """Return the body, decoded as this kind of record.

        Raises:
            RecordInvalid: the record is of another kind, or a field is not what it must be.
        """
        if self.kind != kind:
            raise RecordInvalid("kind", f"is {self.kind}, but must be {kind}")
        try:
            return msgspec.json.decode(self.body, type=shape, dec_hook=read_amount)
        except msgspec.ValidationError as error:
            raise _invalid(error, "body") from None


@dataclass(frozen=True, slots=True)
class Saying:
    """A record before it is signed. See `Record` for the meaning of its members."""

    kind: Kind
    issuer: str
    name: str
    revision: int
    made_ms: int
    body: Struct
    expires_ms: int | None = None


def sign(saying: Saying, signer: Signer) -> Record:
    """Sign a record, and return it as every reader will read it.

    Raises:
        RecordInvalid: no gateway would accept such a record.
    """
    members = {
        "v": 1,
        "kind": saying.kind,
        "issuer": saying.issuer,
        "key": signer.public_key.hex(),
        "name": saying.name,
        "revision": saying.revision,
        "made_ms": saying.made_ms,
        "expires_ms": saying.expires_ms,
        "body": msgspec.to_builtins(saying.body, enc_hook=write_amount),
    }
    members["signature"] = signer.sign(DOMAIN + canonical(members)).hex()
    return open_record(canonical(members))


def open_record(raw: bytes) -> Record:
    """Read a record from an untrusted source, and check form, bounds and signature.

    Raises:
        RecordInvalid: it cannot be trusted; the error names the field.
    """
    members = _members(raw)
    try:
        envelope = msgspec.convert(members, _Envelope)
    except msgspec.ValidationError as error:
        raise _invalid(error, "") from None
    _check_lifetime(envelope)
    key, signature = bytes.fromhex(envelope.key), bytes.fromhex(members.pop("signature"))
    if not is_key(key):
        raise RecordInvalid("key", "is not a secure Ed25519 key")
    signed = DOMAIN + canonical(members)
    if not is_signed(key, signature, signed):
        raise RecordInvalid("signature", "is not that of this key over this record")
    return Record(
        envelope.kind,
        envelope.issuer,
        envelope.key,
        envelope.name,
        envelope.revision,
        envelope.made_ms,
        envelope.expires_ms,
        canonical(envelope.body),
        raw,
        hashlib.sha256(signed).hexdigest(),
    )


def _members(raw: bytes) -> dict[str, Any]:
    if len(raw) > RECORD_BYTES_MAX:
        raise RecordInvalid("", f"has {len(raw)} bytes, more than the maximum of {RECORD_BYTES_MAX}")
    try:
        members = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RecordInvalid("", "is not a JSON object") from None
    # This refuses spaces, another order, a duplicate name, and another way to write a character.
    if canonical(members) != raw:
        raise RecordInvalid("", "is not in its canonical form (RFC 8785)")
    return members


def _check_lifetime(envelope: _Envelope) -> None:
    longest_ms = LIFETIME_MAX_MS[envelope.kind]
    if longest_ms is None:
        if envelope.expires_ms is not None:
            raise RecordInvalid("expires_ms", f"is set, but a {envelope.kind} never expires")
        return
    if envelope.expires_ms is None:
        raise RecordInvalid("expires_ms", f"is missing, but a {envelope.kind} must expire")
    if not envelope.made_ms < envelope.expires_ms <= envelope.made_ms + longest_ms:
        raise RecordInvalid("expires_ms", f"is not within {longest_ms} ms after made_ms")


def _invalid(error: msgspec.ValidationError, within: str) -> RecordInvalid:
    """Turn `Expected X - at $.a.b` into the field and the problem."""
    problem, _, place = str(error).partition(" - at `$")
    path = within + place.rstrip("`")
    if missing := _MISSING.fullmatch(problem):
        return RecordInvalid(f"{path}.{missing[1]}".lstrip("."), "is missing")
    field = path.lstrip(".")
    return RecordInvalid(field, f"is wrong: {problem[:200]}")
