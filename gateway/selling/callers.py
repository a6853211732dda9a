"""Strangers at the agent's door, by the networks that they come from: what each may cost, and all together.

Where nobody can tell (what the house brings does not say; it counts by itself) only the whole is bounded.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from starlette.types import Scope

from gateway.market.throttle import Throttle, network_of
from gateway.settings import SellingSettings
from market.channels.job import JOB_BYTES_MAX

Errand = Literal["jobs", "receipts", "challenge", "tokenizers", "gossip"]
"""What somebody comes for."""

HELD_BYTES_MAX = 8 * JOB_BYTES_MAX
"""Bodies that are being read or looked at may have so many bytes together."""
NETWORK_HELD_BYTES_MAX = 2 * JOB_BYTES_MAX
INSIDE_MAX = 128
"""Requests of one network at once: a quarter of the connections that there are."""
DOWNLOADS_MAX = 16
NETWORK_DOWNLOADS_MAX = 2

PER_MINUTE: dict[Errand, int] = {"jobs": 600, "receipts": 600, "challenge": 120, "tokenizers": 30, "gossip": 600}
"""Of one network."""
TOGETHER = 10
"""All networks together may come for something so many times as often as one."""
_EVERYBODY = "everybody"


class NotTaken(Exception):
    """A request that is not for this server: an HTTP status and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> bytes:
        return msgspec.json.encode({"error": {"code": self.code, "message": str(self)}})


def peer_address(scope: Scope) -> str | None:
    """The address that the connection comes from."""
    client = scope.get("client")
    return client[0] if client else None


def address_by_tunnel(scope: Scope) -> str | None:
    """Behind a tunnel every connection is cloudflared's own, which says whom it came from."""
    found = [value for name, value in scope["headers"] if name == b"cf-connecting-ip"]
    return found[-1].decode("latin-1") if found else None


def address_of(settings: SellingSettings) -> Callable[[Scope], str | None]:
    """Who comes, by the way in that the owner wants; what is fetched from the house does not say."""
    if settings.tunnel in ("quick", "named"):
        return address_by_tunnel
    return peer_address if settings.tunnel == "loopback" else lambda _: None


@dataclass(slots=True)
class _Share:
    """How much of something one network, and all together, have now."""

    one_max: int
    all_max: int
    taken: Counter[str] = field(default_factory=Counter)
    total: int = 0

    def has_room(self, network: str | None, count: int) -> bool:
        if self.total + count > self.all_max:
            return False
        return network is None or self.taken[network] + count <= self.one_max

    def add(self, network: str | None, count: int) -> None:
        self.total += count
        if network is not None:
            self.taken[network] += count
            if not self.taken[network]:
                del self.taken[network]


@dataclass(slots=True, eq=False)
class Held:
    """The bytes of one body that are here."""

    network: str | None
    share: _Share
    count: int = 0

    def add(self, count: int) -> None:
        """So many more came. Raises NotTaken where that is too much."""
        if not self.share.has_room(self.network, count):
            raise NotTaken(429, "full", "Too much is being sent at once. Try again shortly.")
        self.share.add(self.network, count)
        self.count += count

    def release(self) -> None:
        """They count no more: the body is gone, or bounded by whatever has it now."""
        self.share.add(self.network, -self.count)
        self.count = 0


class Callers:
    """Belongs to one event loop.

    Args:
        address_of: whom a request comes from, None where nobody can tell.
        now_s: a clock that never goes back, in seconds.
    """

    def __init__(
        self,
        address_of: Callable[[Scope], str | None] = peer_address,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address_of = address_of
        self._each = {errand: Throttle(count, now_s) for errand, count in PER_MINUTE.items()}
        self._all = {errand: Throttle(TOGETHER * count, now_s) for errand, count in PER_MINUTE.items()}
        self._inside = _Share(INSIDE_MAX, 2**31)
        self._bytes = _Share(NETWORK_HELD_BYTES_MAX, HELD_BYTES_MAX)
        self._downloads = _Share(NETWORK_DOWNLOADS_MAX, DOWNLOADS_MAX)

    def network(self, scope: Scope) -> str | None:
        address = self._address_of(scope)
        return None if address is None else network_of(address)

    @contextmanager
    def letting_in(self, network: str | None, errand: Errand) -> Generator[None]:
        """Raises NotTaken for whoever comes too often, or with too many at once."""
        if network is not None and not self._each[errand].takes(network):
            raise NotTaken(429, "full", "Too many requests from this network. Ask again in a minute.")
        if not self._all[errand].takes(_EVERYBODY):
            raise NotTaken(429, "full", "Too many requests. Ask again in a minute.")
        with _taking(self._inside, network, "Too many requests at once from this network."):
            yield

    @contextmanager
    def downloading(self, network: str | None) -> Generator[None]:
        """One of the few places of those who fetch a file. Raises NotTaken."""
        with _taking(self._downloads, network, "Too many files are being fetched at once. Try again shortly."):
            yield

    @contextmanager
    def holding(self, network: str | None) -> Generator[Held]:
        """A body's bytes, counted as they come; no longer than the block."""
        held = Held(network, self._bytes)
        try:
            yield held
        finally:
            held.release()


@contextmanager
def _taking(share: _Share, network: str | None, problem: str) -> Generator[None]:
    if not share.has_room(network, 1):
        raise NotTaken(429, "full", problem)
    share.add(network, 1)
    try:
        yield
    finally:
        share.add(network, -1)
