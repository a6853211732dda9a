"""Limits on callers of the agent, per network and in total.

If a caller's network is unknown, only the totals apply. Requests fetched from the marketplace do not name it; the
marketplace applies its own limits.
"""

import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from starlette.types import Scope

from market.network.throttle import Throttle, network_of
from market.protocol.channels.job import JOB_BYTES_MAX
from market.settings.seller import SellingSettings

RequestKind = Literal["jobs", "receipts", "challenge", "gossip"]
"""The kinds of request."""

HELD_BYTES_MAX = 8 * JOB_BYTES_MAX
"""Limit on the bytes of all bodies that are being read or checked."""
NETWORK_HELD_BYTES_MAX = 2 * JOB_BYTES_MAX
INSIDE_MAX = 128
"""Concurrent requests of one network: a quarter of all connections."""

PER_MINUTE: dict[RequestKind, int] = {
    "jobs": 600,
    "receipts": 600,
    "challenge": 120,
    "gossip": 600,
}
"""Requests of one network per minute."""
TOGETHER = 10
"""The factor by which the limit for all networks together exceeds that of one."""
_EVERYBODY = "everybody"


class NotAccepted(Exception):
    """A request that this server does not accept, with an HTTP status and a message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> bytes:
        return msgspec.json.encode({"error": {"code": self.code, "message": str(self)}})


def peer_address(scope: Scope) -> str | None:
    """Return the address that the connection comes from."""
    client = scope.get("client")
    return client[0] if client else None


def address_by_tunnel(scope: Scope) -> str | None:
    """Return the client's address as cloudflared states it, since a tunnel's connections are all its own."""
    found = [value for name, value in scope["headers"] if name == b"cf-connecting-ip"]
    return found[-1].decode("latin-1") if found else None


def address_of(settings: SellingSettings) -> Callable[[Scope], str | None]:
    """Return how to find a caller's address for the configured tunnel; requests from the marketplace do not state
    it.
    """
    if settings.tunnel in ("quick", "named"):
        return address_by_tunnel
    return peer_address if settings.tunnel == "loopback" else lambda _: None


@dataclass(slots=True)
class _Share:
    """Current use of one resource, per network and in total."""

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
class HeldBytes:
    """The bytes of one body that have arrived."""

    network: str | None
    share: _Share
    count: int = 0

    def add(self, count: int) -> None:
        """Count more bytes. Raises NotAccepted if that is too much."""
        if not self.share.has_room(self.network, count):
            raise NotAccepted(429, "full", "Too much data is being sent at once. Try again shortly.")
        self.share.add(self.network, count)
        self.count += count

    def release(self) -> None:
        """Stop counting these bytes: the body is gone, or its new owner bounds it."""
        self.share.add(self.network, -self.count)
        self.count = 0


class Callers:
    """Belongs to one event loop.

    Args:
        address_of: finds a request's address; None if it is unknown.
        now_s: a clock that never goes back, in seconds.
    """

    def __init__(
        self,
        address_of: Callable[[Scope], str | None] = peer_address,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address_of = address_of
        self._each = {kind: Throttle(count, now_s) for kind, count in PER_MINUTE.items()}
        self._all = {kind: Throttle(TOGETHER * count, now_s) for kind, count in PER_MINUTE.items()}
        self._inside = _Share(INSIDE_MAX, 2**31)
        self._bytes = _Share(NETWORK_HELD_BYTES_MAX, HELD_BYTES_MAX)

    def network(self, scope: Scope) -> str | None:
        address = self._address_of(scope)
        return None if address is None else network_of(address)

    @contextmanager
    def letting_in(self, network: str | None, kind: RequestKind) -> Generator[None]:
        """Admit a request for the length of the block. Raises NotAccepted if there are too many."""
        if network is not None and not self._each[kind].takes(network):
            raise NotAccepted(429, "full", "Too many requests from this network. Try again in a minute.")
        if not self._all[kind].takes(_EVERYBODY):
            raise NotAccepted(429, "full", "Too many requests. Try again in a minute.")
        with _taking(self._inside, network, "Too many requests at once from this network. Try again shortly."):
            yield

    @contextmanager
    def holding(self, network: str | None) -> Generator[HeldBytes]:
        """Count a body's bytes as they arrive, until the end of the block."""
        held = HeldBytes(network, self._bytes)
        try:
            yield held
        finally:
            held.release()


@contextmanager
def _taking(share: _Share, network: str | None, problem: str) -> Generator[None]:
    if not share.has_room(network, 1):
        raise NotAccepted(429, "full", problem)
    share.add(network, 1)
    try:
        yield
    finally:
        share.add(network, -1)
