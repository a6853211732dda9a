"""Limit what each untrusted network may cost per minute; callers bound the total as well."""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

_NETWORKS_MAX = 4096
_MINUTE_S = 60.0


def network_of(address: str) -> str:
    """Return the network of which one owner is likely to have all addresses: /24 for IPv4, /48 for IPv6."""
    try:
        found = ip_address(address)
    except ValueError:
        return "unknown"
    if found.version == 6 and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(ip_network((found, 24 if found.version == 4 else 48), strict=False))


@dataclass(slots=True)
class _Bucket:
    left: float
    seen_s: float


class Throttle:
    """A budget of `per_minute` for each network, which may be used at once; belongs to one event loop.

    Args:
        now_s: a clock that never goes back, in seconds.
    """

    def __init__(self, per_minute: int, now_s: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._now_s = now_s
        self._buckets: dict[str, _Bucket] = {}

    def takes(self, network: str, count: int = 1) -> bool:
        """Return whether the network has budget left, and take `count` of it; it may go below zero once."""
        now_s = self._now_s()
        bucket = self._buckets.pop(network, None) or _Bucket(self._per_minute, now_s)
        regained = (now_s - bucket.seen_s) * self._per_minute / _MINUTE_S
        bucket.left = min(bucket.left + regained, self._per_minute)
        bucket.seen_s = now_s
        is_allowed = bucket.left >= 1
        if is_allowed:
            bucket.left -= count
        # The networks that asked last are at the end.
        self._buckets[network] = bucket
        if len(self._buckets) > _NETWORKS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return is_allowed
