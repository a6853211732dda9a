"""The interface of every coordinator: leader leases, which one process holds at a time, and small entries.

A process that was frozen for longer than its lease does not know that it has lost it. So every write of a job
carries the lease's epoch, which grows with each change of holder, and `fencing` refuses older ones.
"""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

from market.errors import MarketError

VALUE_BYTES_MAX = 2**16
ENTRIES_MAX = 10_000
"""Most entries under one prefix."""
TTL_S_MIN = 1.0
_KEY = re.compile(r"[A-Za-z0-9._:@-]+(/[A-Za-z0-9._:@-]+)*/?")
_KEY_MAX = 200


class CoordinatorUnavailable(MarketError):
    """Raised if the coordinator does not answer or cannot decide. The request may have been carried out."""


class Deposed(MarketError):
    """Raised if another process has taken the lease. The pending write is not done."""


class EntryInvalid(MarketError):
    """Raised for a name or a value that no coordinator stores."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A leader lease held by this process until `ttl_s` after its last renewal. `token` identifies the holder."""

    name: str
    epoch: int
    token: str
    ttl_s: float


@dataclass(frozen=True, slots=True)
class CoordinatorEntry:
    """A stored entry. `revision` grows with every change of any entry, so it identifies every state of a key."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class EntryChange:
    """The new state of an entry. `value` is None if it is gone."""

    key: str
    value: bytes | None


class Coordinator(Protocol):
    """The interface of every coordinator.

    Every method raises `CoordinatorUnavailable`; those with keys or values raise `EntryInvalid`.
    """

    async def acquire(self, name: str, ttl_s: float, *, above: int = 0) -> HeldLease | None:
        """Take a free lease, with an epoch higher than any before and than `above`. Return None if it is held."""
        ...

    async def renew(self, lease: HeldLease) -> bool:
        """Renew the lease for another `ttl_s`. Return False if it is lost and has to be acquired again."""
        ...

    async def release(self, lease: HeldLease) -> None:
        """Release the lease at once. Do nothing if it is already lost."""
        ...

    async def put(
        self, key: str, value: bytes, *, revision: int | None = None, ttl_s: float | None = None
    ) -> int | None:
        """Write an entry and return its new revision.

        With `revision`, write only if the entry has that revision, where 0 means that it does not exist; otherwise
        return None. With `ttl_s`, the entry expires after that time unless it is written again.
        """
        ...

    async def get(self, key: str) -> CoordinatorEntry | None: ...

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        """Remove an entry, if given only at this revision. Return whether it was removed."""
        ...

    async def entries(self, prefix: str) -> list[CoordinatorEntry]:
        """Return all entries whose keys begin with the prefix, by their keys."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[EntryChange]:
        """Yield the current entries, then every change, without end. Wait while the coordinator does not answer.

        Of quick successive changes, or those during an outage, only the last one is yielded.
        """
        ...

    async def aclose(self) -> None: ...


def check_key(key: str) -> None:
    """Check a key. Raises EntryInvalid."""
    if len(key) > _KEY_MAX or not _KEY.fullmatch(key):
        raise EntryInvalid(
            f"{key[:40]!r} is not a valid key: use words of letters, digits and ._:@- between slashes"
        )


def check_entry(key: str, value: bytes, ttl_s: float | None) -> None:
    """Check an entry. Raises EntryInvalid."""
    check_key(key)
    if len(value) > VALUE_BYTES_MAX:
        raise EntryInvalid(f"{key} has {len(value)} bytes, more than the maximum of {VALUE_BYTES_MAX}")
    if ttl_s is not None:
        check_ttl(ttl_s)


def check_ttl(ttl_s: float) -> None:
    """Check a lifetime. Raises EntryInvalid."""
    if not ttl_s >= TTL_S_MIN:
        raise EntryInvalid(f"the lifetime must be at least {TTL_S_MIN:g} s")


def differences(
    known: Mapping[str, CoordinatorEntry], current: Mapping[str, CoordinatorEntry]
) -> list[EntryChange]:
    """Return the changes from one state to the other."""
    gone = [EntryChange(key, None) for key in known if key not in current]
    changed = [
        EntryChange(entry.key, entry.value)
        for entry in current.values()
        if entry.key not in known or known[entry.key].revision != entry.revision
    ]
    return gone + changed
