"""Remember which requests were opened with one sealing key, so that none is answered twice."""

from market.errors import SealBroken

SEEN_MAX = 100_000


class Seen:
    """The buyers' keys of all requests since the sealing key was made. It lives as long as that key.

    It forgets nothing. When it is full, no request is opened until there is a new sealing key.
    """

    def __init__(self, room: int = SEEN_MAX) -> None:
        self._room = room
        self._keys: set[bytes] = set()

    @property
    def is_nearly_full(self) -> bool:
        """Return whether a new sealing key is due."""
        return len(self._keys) * 4 >= self._room * 3

    def add(self, own_key: bytes) -> None:
        """Add a request.

        Raises:
            SealBroken: it came before, or there is no space left.
        """
        if own_key in self._keys:
            raise SealBroken("this request came before")
        if len(self._keys) >= self._room:
            raise SealBroken("too many requests came with this sealing key: use the newest listing's")
        self._keys.add(own_key)
