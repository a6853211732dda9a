"""Select which statements can matter to an identity: those by its own keys, up to a limit.

Anyone can sign a statement in another's name. Lineages leave such statements out. Stores must do so too, or third
parties would fill the space for an identity's own. The selection does not depend on the order of arrival.
"""

from collections.abc import Collection, Iterable

from market.protocol.identity.lineage import beginning
from market.protocol.identity.statements import Revocation, Rotation
from market.protocol.records.envelope import Record

ROTATIONS_KEPT = 160
REVOCATIONS_KEPT = 96


def connected(identity: str, statements: Collection[Record]) -> list[Record]:
    """Return the statements about this identity's keys by one of them or by its recovery key, up to the limits.

    Those by the recovery key come first, then rotations by their numbers, so a thief of a key cannot displace
    earlier statements. All must have passed `check_statement`.
    """
    founding = [each for each in statements if each.kind == "founding"]
    root, recovery = beginning(identity, statements)
    rotations = [each for each in statements if each.kind == "rotation"]
    reached = _reached(root, recovery, rotations)
    linked = [each for each in rotations if _is_linked(each, recovery, reached)]
    revoking = [each for each in statements if each.kind == "revocation" and _revokes(each, recovery, reached)]

    def rank(record: Record) -> tuple[bool, int, str]:
        return record.key != recovery, record.revision, record.digest

    return founding + sorted(linked, key=rank)[:ROTATIONS_KEPT] + sorted(revoking, key=rank)[:REVOCATIONS_KEPT]


def keys_reached(identity: str, statements: Collection[Record]) -> frozenset[str]:
    """Return every key that some chain of an identity's rotations leads to, whichever of two chains is right."""
    root, recovery = beginning(identity, statements)
    return frozenset(_reached(root, recovery, [each for each in statements if each.kind == "rotation"]))


def _reached(root: str, recovery: str, rotations: Iterable[Record]) -> dict[str, set[int]]:
    """Return every key that some chain of rotations leads to, with the numbers of rotations on the way."""
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
