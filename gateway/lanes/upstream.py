"""A backend from a call's view: its address, its headers, and its timeouts."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from gateway.dialects.openai import PATHS, Kind
from gateway.lanes.base import Call
from runtime.errors import LaneFailed
from runtime.http.client import Client
from runtime.http.origin import Origin, split_url

_HEADS_MAX = 64
# From this size, head and body are sent without joining them in memory.
_LARGE_BYTES = 64 * 2**10


class Upstream(Struct, frozen=True):
    """The destination of a call, and its timeouts in seconds.

    `is_paid`: work is charged, so a call that may have arrived is never sent again, and the delivered text is kept
    for the charge. `is_ours`: a process of this gateway, which counts prompts.
    """

    name: str
    client: Client
    base_url: str
    headers: dict[str, str] = {}
    first_byte_s: float = 300.0
    silence_s: float = 120.0
    total_s: float = 3600.0
    is_paid: bool = False
    socket_path: str = ""
    is_ours: bool = False
    doubt: Callable[[], None] | None = None
    """Called if an answer takes long to begin."""
    _heads: dict[tuple[Kind, str], tuple[Origin, bytes]] = {}

    def request(self, call: Call, body: bytes) -> tuple[Origin, list[bytes]]:
        """Return the destination and the bytes to send. Raises LaneFailed."""
        origin, head = self._heads.get((call.kind, call.content_type)) or self._head_for(call)
        head = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (head, call.id.encode(), len(body))
        return origin, [head + body] if len(body) < _LARGE_BYTES else [head, body]

    def _head_for(self, call: Call) -> tuple[Origin, bytes]:
        """Make and keep the common beginning of all requests of this kind to this upstream."""
        origin, base_path = split_url(self.base_url, self.socket_path)
        head = _head(origin, base_path + PATHS[call.kind], call.content_type, self.headers)
        if len(self._heads) >= _HEADS_MAX:  # every form has its own boundary
            self._heads.clear()
        found = self._heads[call.kind, call.content_type] = (origin, head)
        return found


def _head(origin: Origin, path: str, content_type: str, more: Mapping[str, str]) -> bytes:
    """Raises LaneFailed for a header with a line break."""
    headers = {"host": origin.authority, "content-type": content_type, "accept-encoding": "identity", **more}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise LaneFailed("a header or path of this backend has a line break in it")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n"
