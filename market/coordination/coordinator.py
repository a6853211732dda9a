"""What a coordinator can do, whatever keeps it: seats that one process holds at a time, and small entries.

A seat is a lease. Whoever was frozen for longer than it lasts does not know that it has lost it; so every write of
a chore carries the seat's epoch, which grows with each change of hands, and `fencing` refuses those behind.
"""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol

from market.errors import MarketError

VALUE_BYTES_MAX = 2**16
ENTRIES_MAX = 10_000
"""The most entries under one prefix."""
TTL_S_MIN = 1.0
_KEY = re.compile(r"[A-Za-z0-9._:@-]+(/[A-Za-z0-9._:@-]+)*/?")
_KEY_MAX = 200


class CoordinatorUnavailable(MarketError):
    """It does not answer, or cannot decide; what was asked may have been done all the same."""


class Deposed(MarketError):
    """Another process has taken the seat: what this one was about to write is not written."""


class EntryInvalid(MarketError):
    """A name or a value that no coordinator keeps."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Held by this process until `ttl_s` after it was last renewed. `token` tells holders apart."""

    name: str
    epoch: int
    token: str
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Entry:
    """`revision` grows with every change of anything, so that it tells every state of a key apart."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """What an entry is now; `value` is None where it is gone."""

    key: str
    value: bytes | None


class Coordinator(Protocol):
    """Every method raises `CoordinatorUnavailable`; those with keys or values raise `EntryInvalid`."""

    async def acquire(self, name: str, ttl_s: float, *, above: int = 0) -> Seat | None:
        """Take a seat if nobody holds it, with an epoch higher than any before, and than `above`."""
        ...

    async def renew(self, seat: Seat) -> bool:
        """Hold it for another `ttl_s`; False where it is lost: to be acquired anew."""
        ...

    async def release(self, seat: Seat) -> None:
        """Let others have it at once. Nothing happens where it is lost already."""
        ...

    async def put(
        self, key: str, value: bytes, *, revision: int | None = None, ttl_s: float | None = None
    ) -> int | None:
        """Write an entry; returns its new revision.

        With `revision` only where the entry has that one, 0 meaning that there is none; else None is returned.
        With `ttl_s` it is gone after so long, unless it is written again.
        """
        ...

    async def get(self, key: str) -> Entry | None: ...

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        """Remove an entry, where it has this revision if one is given; returns whether it was there."""
        ...

    async def entries(self, prefix: str) -> list[Entry]:
        """All entries whose keys begin so, by their keys."""
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Change]:
        """First what is there, then every change, for ever; it waits where the coordinator does not answer.

        Of changes that follow each other fast, or happened while it did not answer, the last one is told.
        """
        ...

    async def aclose(self) -> None: ...


def check_key(key: str) -> None:
    """Raises EntryInvalid."""
    if len(key) > _KEY_MAX or not _KEY.fullmatch(key):
        raise EntryInvalid(f"{key[:40]!r} is no key: words of letters, digits and ._:@- between slashes")


def check_entry(key: str, value: bytes, ttl_s: float | None) -> None:
    """Raises EntryInvalid."""
    check_key(key)
    if len(value) > VALUE_BYTES_MAX:
        raise EntryInvalid(f"{key} has {len(value)} bytes, and {VALUE_BYTES_MAX} are the most")
    if ttl_s is not None:
        check_ttl(ttl_s)


def check_ttl(ttl_s: float) -> None:
    """Raises EntryInvalid."""
    if not ttl_s >= TTL_S_MIN:
        raise EntryInvalid(f"nothing is kept for less than {TTL_S_MIN:g} s")


def differences(known: Mapping[str, Entry], found: Mapping[str, Entry]) -> list[Change]:
    """What a watcher that knows the one is told when it finds the other."""
    gone = [Change(key, None) for key in known if key not in found]
    changed = [
        Change(entry.key, entry.value)
        for entry in found.values()
        if entry.key not in known or known[entry.key].revision != entry.revision
    ]
    return gone + changed
