"""Where a backend is reached: a host and port, or a unix socket."""

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """What connections are shared by. `socket_path` goes before host and port."""

    host: str
    port: int
    is_tls: bool = False
    socket_path: str = ""

    @property
    def authority(self) -> str:
        """As the Host header says it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"


@lru_cache(maxsize=4096)
def split_url(url: str, socket_path: str = "") -> tuple[Origin, str]:
    """The origin of an http or https URL and its path without a slash at the end. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is no http:// or https:// address")
    port = parts.port or _PORTS[parts.scheme]
    return Origin(parts.hostname, port, parts.scheme == "https", socket_path), parts.path.rstrip("/")
