"""What an identity says about its keys: how it began, which key follows which, which is worth nothing any more.

Each is a signed record for good. A book takes them only after `check_statement`.
"""

from msgspec import Struct

from accounting.proofs.signing import Signer, is_key, is_signed
from market.errors import IdentityInvalid
from market.identity.keys import identity_of
from market.records.canonical import canonical
from market.records.envelope import Count, Hex32, Hex64, Record, Saying, sign

_ACCEPTING = b"millrace key accepts an identity\n"
ROTATIONS_MAX = 64


class Founding(Struct, frozen=True):
    """The keys that the identity's id is the hash of. Needed only where there is a recovery key."""

    root_key: Hex32
    recovery_key: Hex32


class Rotation(Struct, frozen=True):
    """`new_key` speaks from now on, where `old_key` did; `number` counts an identity's rotations from 1.

    `accepted` is the new key's own signature: nobody can name somebody else's key as theirs.
    """

    number: Count
    old_key: Hex32
    new_key: Hex32
    accepted: Hex64


class Revocation(Struct, frozen=True):
    """Nothing that `key` signed is believed any more, however old it says it is."""

    key: Hex32
    reason: str = ""


def found(root: Signer, recovery_key: bytes, made_ms: int) -> Record:
    """Begin an identity that has a recovery key."""
    body = Founding(root.public_key.hex(), recovery_key.hex())
    return sign(Saying("founding", identity_of(root.public_key, recovery_key), "founding", 0, made_ms, body), root)


def rotate(issuer: str, number: int, old_key: bytes, new: Signer, by: Signer, made_ms: int) -> Record:
    """Let `new` speak instead of `old_key`; `by` is the old key, or the recovery key."""
    accepted = new.sign(_acceptance(issuer, number, old_key.hex()))
    body = Rotation(number, old_key.hex(), new.public_key.hex(), accepted.hex())
    return sign(Saying("rotation", issuer, body.new_key, number, made_ms, body), by)


def revoke(issuer: str, key: bytes, by: Signer, made_ms: int, reason: str = "") -> Record:
    """Make a key worthless; `by` is itself, a later key of the identity, or its recovery key."""
    body = Revocation(key.hex(), reason[:200])
    return sign(Saying("revocation", issuer, body.key, 0, made_ms, body), by)


def check_statement(record: Record) -> None:
    """Check that a founding, rotation or revocation says what its envelope does. Other kinds pass.

    Raises:
        RecordInvalid: a field of it is wrong.
        IdentityInvalid: it contradicts itself.
    """
    if record.kind == "founding":
        founding = record.read("founding", Founding)
        keys = bytes.fromhex(founding.root_key), bytes.fromhex(founding.recovery_key)
        if identity_of(*keys) != record.issuer or founding.root_key != record.key or keys[0] == keys[1]:
            raise IdentityInvalid("a founding is by its root key, has another for recovery, and hashes to the id")
        if not is_key(keys[1]):
            raise IdentityInvalid("the recovery key is no Ed25519 key that a signature can be believed of")
    elif record.kind == "rotation":
        _check_rotation(record, record.read("rotation", Rotation))
    elif record.kind == "revocation" and record.name != record.read("revocation", Revocation).key:
        raise IdentityInvalid("a revocation has the revoked key as its name")


def _check_rotation(record: Record, rotation: Rotation) -> None:
    # Name and revision are what books order by: were they free, one rotation could hide another.
    if (record.name, record.revision) != (rotation.new_key, rotation.number):
        raise IdentityInvalid("a rotation has the new key as its name and its number as revision")
    if not 1 <= rotation.number <= ROTATIONS_MAX:
        raise IdentityInvalid(f"rotations are numbered from 1 to {ROTATIONS_MAX}")
    message = _acceptance(record.issuer, rotation.number, rotation.old_key)
    if not is_signed(bytes.fromhex(rotation.new_key), bytes.fromhex(rotation.accepted), message):
        raise IdentityInvalid("the new key has not signed that it is this identity's")


def _acceptance(issuer: str, number: int, old_key: str) -> bytes:
    return _ACCEPTING + canonical({"identity": issuer, "number": number, "old_key": old_key})
