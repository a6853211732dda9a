"""The addresses at which processes of a cluster listen, and whether other machines can reach them."""

import socket

import psutil
from msgspec import Struct

_ANY = ("0.0.0.0", "::")  # noqa: S104 - recognized, not bound


class Target(Struct, frozen=True):
    """The address where a cluster's controller listens for nodes, or may listen."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_reachable(host: str) -> bool:
    """Tell whether other machines can reach a process that listens there."""
    return not (host.startswith("127.") or host in ("::1", "localhost"))


def own_addresses(host: str) -> tuple[str, ...]:
    """Return the addresses at which a listener on `host` is reached from this machine's networks."""
    if host not in _ANY:
        return (host,)
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)  # noqa: S104
    up = {name for name, interface in psutil.net_if_stats().items() if interface.isup}
    addresses = [
        entry.address
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if entry.family in families and is_reachable(entry.address) and not entry.address.startswith("fe80")
    ]
    return tuple(sorted(addresses))
