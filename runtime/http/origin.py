"""The address of a backend: a host and port, or a unix socket."""

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """The key by which connections are shared. `socket_path` has priority over host and port."""

    host: str
    port: int
    is_tls: bool = False
    socket_path: str = ""

    @property
    def authority(self) -> str:
        """Return the address in the form of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"


@lru_cache(maxsize=4096)
def split_url(url: str, socket_path: str = "") -> tuple[Origin, str]:
    """The origin of an http or https URL and its path without a slash at the end. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not an http:// or https:// address")
    port = parts.port or _PORTS[parts.scheme]
    return Origin(parts.hostname, port, parts.scheme == "https", socket_path), parts.path.rstrip("/")
