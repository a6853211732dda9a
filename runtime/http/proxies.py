"""Finds the client of a request: if the peer is a trusted proxy, its headers name the client."""

import ipaddress
from collections.abc import Iterable, Sequence

# No client is behind more proxies than this; earlier entries may be forged by the client.
_HOPS_MAX = 32

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Fields = Sequence[tuple[bytes, bytes]]


class TrustedProxies:
    """The networks whose machines may name the client of a request; without any, no header is trusted.

    Every proxy appends the address of its own peer. So the last address that is no trusted proxy's own
    is the caller's. The caller may have forged every entry before it.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, peer: str) -> bool:
        return self._is_ours(_parsed(peer))

    def caller(self, peer: str, fields: Fields) -> str:
        """The caller's address: the peer's, unless that is trusted and its headers name another.

        Forwarded is read only without X-Forwarded-For: a proxy that writes the latter passes the former on
        unchanged.
        """
        if not self.trusts(peer):
            return peer
        is_plain = any(name == b"x-forwarded-for" for name, _ in fields)
        return self._last_stranger(peer, _listed(fields, b"x-forwarded-for") if is_plain else _forwarded(fields))

    def scheme(self, peer: str, fields: Fields) -> str | None:
        """Return the scheme that the caller used with the first proxy, if a trusted proxy tells."""
        schemes = _listed(fields, b"x-forwarded-proto") if self.trusts(peer) else []
        return schemes[-1] if schemes and schemes[-1] in ("http", "https") else None

    def _last_stranger(self, peer: str, hops: Sequence[str]) -> str:
        """Walk back from the gateway to the first untrusted address; stop before a hop that is no address."""
        nearest = peer
        for hop in reversed(hops):
            address = _parsed(hop)
            if address is None:
                return nearest
            nearest = str(address)
            if not self._is_ours(address):
                return nearest
        return nearest

    def _is_ours(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _listed(fields: Fields, name: bytes) -> list[str]:
    """Return the last non-empty elements of a list that may span several headers."""
    values = b",".join(value for have, value in fields if have == name).decode("latin-1")
    elements = (element.strip() for element in values.rsplit(",", _HOPS_MAX)[-_HOPS_MAX:])
    return [element for element in elements if element]


def _forwarded(fields: Fields) -> list[str]:
    """Return the `for` value of each element of Forwarded (RFC 7239); empty for an element without one."""
    hops = []
    for element in _listed(fields, b"forwarded"):
        pairs = (pair.partition("=") for pair in element.split(";"))
        hops.append(next((value.strip(' "') for name, _, value in pairs if name.strip().lower() == "for"), ""))
    return hops


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address that may have brackets and a port; an IPv4-mapped IPv6 address becomes IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
