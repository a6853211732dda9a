"""Checks the `Host` header of requests to a gateway that listens on this machine alone.

A web page may give its own name the address 127.0.0.1 (DNS rebinding). A browser then lets the page read the
gateway's answers, but sends the page's name in `Host`. Names that cannot be registered on the web are allowed.
"""

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from runtime.http.proxies import TrustedProxies

_REMEMBERED = 256


class Hosts:
    """`names` are this gateway's, in addition to localhost and the machine's name; None allows every name."""

    def __init__(self, names: Iterable[str] | None = None, proxies: TrustedProxies | None = None) -> None:
        self._names = None if names is None else {name.lower() for name in (*names, socket.gethostname())}
        self._proxies = proxies or TrustedProxies(())
        self._right: set[bytes] = set()

    @classmethod
    def of(cls, listening: str, public_url: str | None, proxies: TrustedProxies) -> "Hosts":
        """Return the names for a gateway that listens on this address. Trusted proxies may pass any name on."""
        if not ipaddress.ip_address(listening).is_loopback:
            return cls()
        host = urlsplit(public_url).hostname if public_url else None
        return cls([host] if host else [], proxies)

    def allows(self, host: bytes, peer: str) -> bool:
        """Return whether a request with this `Host` header is meant for this gateway."""
        if self._names is None or host in self._right:
            return True
        if self._is_right(_name_of(host.decode("latin-1"))):
            if len(self._right) < _REMEMBERED:
                self._right.add(host)
            return True
        return self._proxies.trusts(peer)

    def _is_right(self, name: str) -> bool:
        """Allow own names, addresses and names without a dot; the last two cannot be registered on the web."""
        return "." not in name or name.endswith(".localhost") or name in (self._names or ()) or _is_address(name)


def _name_of(host: str) -> str:
    """Return the name in lower case, without the port and a final dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.strip().rpartition(":")[0].lower().rstrip(".") if ":" in host else host.strip().lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
