"""Which statements can matter to an identity: those by its own keys, and not more than it can need.

Anybody can sign a statement in anybody's name. Lineages leave such ones out; so must whoever keeps statements, or
strangers would fill the place of an identity's own. What is connected does not depend on the order of arrival.
"""

from collections.abc import Collection, Iterable, Iterator

from accounting.proofs.signing import fingerprint_of
from market.identity.statements import Founding, Revocation, Rotation
from market.records.envelope import Record

ROTATIONS_KEPT = 160
REVOCATIONS_KEPT = 96


def connected(identity: str, statements: Collection[Record]) -> list[Record]:
    """The statements about this identity's keys by one of them, or by its recovery key, as far as they have room.

    The recovery key's come first, then rotations by their numbers: who has stolen a key cannot push out what was
    said before. They must have passed `check_statement`.
    """
    founding = [each for each in statements if each.kind == "founding"]
    root, recovery = _beginning(identity, statements)
    rotations = [each for each in statements if each.kind == "rotation"]
    reached = _reached(root, recovery, rotations)
    linked = [each for each in rotations if _is_linked(each, recovery, reached)]
    revoking = [each for each in statements if each.kind == "revocation" and _revokes(each, recovery, reached)]

    def rank(record: Record) -> tuple[bool, int, str]:
        return record.key != recovery, record.revision, record.digest

    return founding + sorted(linked, key=rank)[:ROTATIONS_KEPT] + sorted(revoking, key=rank)[:REVOCATIONS_KEPT]


def keys_reached(identity: str, statements: Collection[Record]) -> frozenset[str]:
    """Every key that some chain of an identity's rotations leads to, whichever of two chains is the right one."""
    root, recovery = _beginning(identity, statements)
    return frozenset(_reached(root, recovery, [each for each in statements if each.kind == "rotation"]))


def _beginning(identity: str, statements: Iterable[Record]) -> tuple[str, str]:
    """Root and recovery key; no root where nothing tells it."""
    root = ""
    for record in statements:
        if record.kind == "founding":
            founding = record.read("founding", Founding)
            return founding.root_key, founding.recovery_key
        if not root:
            root = next((key for key in _named(record) if fingerprint_of(bytes.fromhex(key)) == identity), "")
    return root, ""


def _named(record: Record) -> Iterator[str]:
    yield record.key
    if record.kind == "rotation":
        yield record.read("rotation", Rotation).old_key
    elif record.kind == "revocation":
        yield record.read("revocation", Revocation).key


def _reached(root: str, recovery: str, rotations: Iterable[Record]) -> dict[str, set[int]]:
    """Every key that some chain of rotations leads to, with the numbers of rotations that it takes."""
    following: dict[tuple[str, int], list[str]] = {}
    for record in rotations:
        rotation = record.read("rotation", Rotation)
        if record.key in (rotation.old_key, recovery):
            following.setdefault((rotation.old_key, rotation.number), []).append(rotation.new_key)
    reached: dict[str, set[int]] = {}
    ahead = [(root, 0)] if root else []
    while ahead:
        key, number = ahead.pop()
        if number not in reached.setdefault(key, set()):
            reached[key].add(number)
            ahead += [(new, number + 1) for new in following.get((key, number + 1), ())]
    return reached


def _is_linked(record: Record, recovery: str, reached: dict[str, set[int]]) -> bool:
    rotation = record.read("rotation", Rotation)
    by_whom = record.key in (rotation.old_key, recovery)
    return by_whom and rotation.number - 1 in reached.get(rotation.old_key, ())


def _revokes(record: Record, recovery: str, reached: dict[str, set[int]]) -> bool:
    is_ours = record.key in reached or record.key == recovery
    return is_ours and record.read("revocation", Revocation).key in reached
