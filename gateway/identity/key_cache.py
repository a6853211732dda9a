"""Caches the callers of keys: drops the least recently used first, and changed ones at once."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Set
from dataclasses import dataclass, replace

from gateway.identity.caller import Caller
from gateway.identity.quotas import scopes_of

# How long a caller stays cached after the database last confirmed it.
CACHE_S = 5.0
# After this time the key is queried again, even without a change.
KEPT_S = 600.0
# How long a caller stays cached while the database does not answer, and the interval of retries meanwhile.
OUTAGE_S = 600.0
_AGAIN_S = 1.0
CACHE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _Entry:
    caller: Caller
    read_s: float
    ends_s: float
    again_s: float = 0.0
    """Until then it is used without a query, although the database did not answer."""


class KeyCache:
    """Callers by token. One may be used for CACHE_S from when it was read or last confirmed.

    Any thread may use it. `clock` gives seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._confirmed_s = -CACHE_S
        self._lock = threading.Lock()
        self.drops = 0
        """The number of drops; callers read before the last drop may be outdated."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, token: object) -> bool:
        return token in self._entries

    def get(self, token: str) -> Caller | None:
        """Return the caller of a token; None if it must be queried."""
        found = self._entries.get(token)
        if found is None:
            return None
        now_s, read_s = self._clock(), found.read_s
        is_fresh = now_s - CACHE_S < self._confirmed_s or now_s - CACHE_S < read_s
        if now_s >= found.ends_s or not ((is_fresh and now_s < read_s + KEPT_S) or now_s < found.again_s):
            return None
        try:
            self._entries.move_to_end(token)
        except KeyError:  # another thread has just removed it
            return None
        return found.caller

    def last_known(self, token: str) -> Caller | None:
        """Return the caller of a token while the database does not answer; `get` then returns it for _AGAIN_S."""
        with self._lock:
            found, now_s = self._entries.get(token), self._clock()
            if found is None or now_s >= min(found.ends_s, max(found.read_s, self._confirmed_s) + OUTAGE_S):
                return None
            self._entries[token] = replace(found, again_s=now_s + _AGAIN_S)
            return found.caller

    def put(self, token: str, caller: Caller, *, read_s: float, lasts_s: float, drops: int) -> None:
        """Store a caller that was read at `read_s` with this count of `drops`; an outdated one is not stored."""
        with self._lock:
            if drops != self.drops:
                return
            self._entries[token] = _Entry(caller, read_s, read_s + lasts_s)
            self._entries.move_to_end(token)
            if len(self._entries) > CACHE_MAX:
                self._entries.popitem(last=False)

    def confirm(self, at_s: float) -> None:
        """Note that all stored callers were confirmed at `at_s`."""
        self._confirmed_s = at_s

    def remove(self, token: str) -> None:
        self._entries.pop(token, None)

    def drop(self, scopes: Set[str] | None = None) -> None:
        """Drop the callers in one of these scopes (`quotas.SCOPES`), or all."""
        self._drop(lambda caller: scopes is None or not scopes.isdisjoint(_scopes_of(caller)))

    def drop_keys(self, key_ids: Container[str]) -> None:
        self._drop(lambda caller: caller.key_id in key_ids)

    def _drop(self, concerns: Callable[[Caller], bool]) -> None:
        with self._lock:
            self.drops += 1
            for token, entry in list(self._entries.items()):
                if concerns(entry.caller):
                    self.remove(token)


def _scopes_of(caller: Caller) -> tuple[str, ...]:
    return scopes_of(caller.user_id, caller.organization_id, caller.department, key_id=caller.key_id)
