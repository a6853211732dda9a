"""Sign and check an identity's statements about its keys: its founding, rotations and revocations.

Each is a permanent signed record. A book takes them only after `check_statement`.
"""

from msgspec import Struct

from accounting.proofs.signing_key import Signer, is_key, is_signed
from market.errors import IdentityInvalid
from market.protocol.identity.keys import identity_of
from market.protocol.records.canonical import canonical
from market.protocol.records.envelope import Count, Hex32, Hex64, Record, Saying, sign

_ACCEPTING = b"millrace key accepts an identity\n"
ROTATIONS_MAX = 64


class Founding(Struct, frozen=True):
    """The keys whose hash is the identity's id. Needed only if there is a recovery key."""

    root_key: Hex32
    recovery_key: Hex32


class Rotation(Struct, frozen=True):
    """`new_key` replaces `old_key` from now on. `number` counts an identity's rotations from 1.

    `accepted` is the new key's own signature, so that no identity can claim another's key.
    """

    number: Count
    old_key: Hex32
    new_key: Hex32
    accepted: Hex64


class Revocation(Struct, frozen=True):
    """No record signed by `key` is trusted any more, whatever date it states."""

    key: Hex32
    reason: str = ""


def found(root: Signer, recovery_key: bytes, made_ms: int) -> Record:
    """Begin an identity with a recovery key."""
    body = Founding(root.public_key.hex(), recovery_key.hex())
    return sign(Saying("founding", identity_of(root.public_key, recovery_key), "founding", 0, made_ms, body), root)


def rotate(issuer: str, number: int, old_key: bytes, new: Signer, by: Signer, made_ms: int) -> Record:
    """Replace `old_key` with `new`. `by` is the old key, or the recovery key."""
    accepted = new.sign(_acceptance(issuer, number, old_key.hex()))
    body = Rotation(number, old_key.hex(), new.public_key.hex(), accepted.hex())
    return sign(Saying("rotation", issuer, body.new_key, number, made_ms, body), by)


def revoke(issuer: str, key: bytes, by: Signer, made_ms: int, reason: str = "") -> Record:
    """Revoke a key. `by` is the key itself, a later key of the identity, or its recovery key."""
    body = Revocation(key.hex(), reason[:200])
    return sign(Saying("revocation", issuer, body.key, 0, made_ms, body), by)


def check_statement(record: Record) -> None:
    """Check that a founding, rotation or revocation agrees with its envelope. Other kinds pass.

    Raises:
        RecordInvalid: a field of it is wrong.
        IdentityInvalid: it contradicts itself.
    """
    if record.kind == "founding":
        founding = record.read("founding", Founding)
        keys = bytes.fromhex(founding.root_key), bytes.fromhex(founding.recovery_key)
        if identity_of(*keys) != record.issuer or founding.root_key != record.key or keys[0] == keys[1]:
            raise IdentityInvalid(
                "a founding must be signed by its root key, have another key for recovery, and hash to the id"
            )
        if not is_key(keys[1]):
            raise IdentityInvalid("the recovery key is not a secure Ed25519 key")
    elif record.kind == "rotation":
        _check_rotation(record, record.read("rotation", Rotation))
    elif record.kind == "revocation" and record.name != record.read("revocation", Revocation).key:
        raise IdentityInvalid("a revocation must have the revoked key as its name")


def _check_rotation(record: Record, rotation: Rotation) -> None:
    # Books order by name and revision. If they were free, one rotation could hide another.
    if (record.name, record.revision) != (rotation.new_key, rotation.number):
        raise IdentityInvalid("a rotation must have the new key as its name and its number as revision")
    if not 1 <= rotation.number <= ROTATIONS_MAX:
        raise IdentityInvalid(f"rotations must be numbered from 1 to {ROTATIONS_MAX}")
    message = _acceptance(record.issuer, rotation.number, rotation.old_key)
    if not is_signed(bytes.fromhex(rotation.new_key), bytes.fromhex(rotation.accepted), message):
        raise IdentityInvalid("the new key has not signed that it belongs to this identity")


def _acceptance(issuer: str, number: int, old_key: str) -> bytes:
    return _ACCEPTING + canonical({"identity": issuer, "number": number, "old_key": old_key})
