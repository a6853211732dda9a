"""Work out which keys an identity has had, and how far each is trusted now, from its own signed statements.

Neither the order of arrival nor the time of a statement counts, because a thief can write any time. So if a key
has two successors, or one that was used before, being first decides nothing. The identity is then dead, unless its
recovery key names the right successor.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from accounting.proofs.signing_key import fingerprint_of
from market.protocol.identity.statements import ROTATIONS_MAX, Founding, Revocation, Rotation
from market.protocol.records.envelope import Record
from market.protocol.records.key_status import Standing


@dataclass(frozen=True, slots=True)
class Lineage:
    """Keys in their order of use. The last one is current, unless it is revoked or `is_forked`."""

    identity: str
    keys: tuple[str, ...] = ()
    recovery_key: str = ""
    revoked: frozenset[str] = frozenset()
    is_forked: bool = False

    def standing(self, key: str) -> Standing:
        """Return how far a record of this identity with this key is trusted.

        Promises of a retired key still count. An owner that suspects a leak revokes it.
        """
        if key not in self.keys:
            return "unknown"
        if key in self.revoked or self.is_forked:
            return "revoked"
        return "current" if key == self.keys[-1] else "retired"


class Identities:
    """The known facts about all identities, from their foundings, rotations and revocations.

    The statements must have passed `check_statement`.
    """

    def __init__(self, statements: Iterable[Record] = ()) -> None:
        self._statements: dict[str, list[Record]] = {}
        self._lineages: dict[str, Lineage] = {}
        for record in statements:
            if record.kind in ("founding", "rotation", "revocation"):
                self._statements.setdefault(record.issuer, []).append(record)

    def standing(self, identity: str, key: str) -> Standing:
        """Return how far a record of this identity with this key is trusted.

        If no statement tells how the identity began, its root is the key whose hash is the id, because third
        parties may claim anything about it.
        """
        found = self.lineage(identity)
        if not found.keys:
            return "current" if fingerprint_of(bytes.fromhex(key)) == identity else "unknown"
        return found.standing(key)

    def statements_of(self, identity: str) -> tuple[Record, ...]:
        """Return the known statements of the identity about its keys."""
        return tuple(self._statements.get(identity, ()))

    def lineage(self, identity: str) -> Lineage:
        # Remember only identities with statements: third parties may ask about any number of identities.
        if identity not in self._statements:
            return Lineage(identity)
        if identity not in self._lineages:
            self._lineages[identity] = _lineage(identity, self._statements[identity])
        return self._lineages[identity]


def _lineage(identity: str, records: list[Record]) -> Lineage:
    root, recovery = beginning(identity, records)
    if not root:
        return Lineage(identity)
    keys, is_forked = _follow(root, recovery, [each for each in records if each.kind == "rotation"])
    revoked = _revoked(keys, recovery, [each for each in records if each.kind == "revocation"])
    return Lineage(identity, keys, recovery, revoked, is_forked)


def beginning(identity: str, records: Collection[Record]) -> tuple[str, str]:
    """Return root and recovery key. Without a founding, the root is the key whose hash is the id, "" if unknown."""
    for record in records:
        if record.kind == "founding":
            founding = record.read("founding", Founding)
            return founding.root_key, founding.recovery_key
    named = {record.key for record in records}
    named |= {each.read("rotation", Rotation).old_key for each in records if each.kind == "rotation"}
    named |= {each.read("revocation", Revocation).key for each in records if each.kind == "revocation"}
    return next((key for key in named if fingerprint_of(bytes.fromhex(key)) == identity), ""), ""


def _follow(root: str, recovery: str, records: list[Record]) -> tuple[tuple[str, ...], bool]:
    keys = [root]
    for number in range(1, ROTATIONS_MAX + 1):
        successors = _successors(keys[-1], recovery, number, records)
        if len(successors) != 1 or successors & set(keys):
            return tuple(keys), bool(successors)
        keys += successors
    return tuple(keys), False


def _successors(key: str, recovery: str, number: int, records: list[Record]) -> set[str]:
    """Return the keys that may follow: those named by the recovery key, or else those named by this key."""
    by_signer: dict[str, set[str]] = {key: set(), recovery: set()}
    for record in records:
        rotation = record.read("rotation", Rotation)
        if record.key in by_signer and (rotation.number, rotation.old_key) == (number, key):
            by_signer[record.key].add(rotation.new_key)
    return by_signer[recovery] or by_signer[key]


def _revoked(keys: tuple[str, ...], recovery: str, records: list[Record]) -> frozenset[str]:
    """Return the revoked keys.

    A key itself, later keys and the recovery key may revoke it; earlier keys may not.
    """
    revoked = set()
    for record in records:
        key = record.read("revocation", Revocation).key
        if key in keys and (record.key == recovery or record.key in keys[keys.index(key) :]):
            revoked.add(key)
    return frozenset(revoked)
