"""Server-sent events, read from whatever pieces they arrive in."""

DONE = b"[DONE]"
EVENT_BYTES_MAX = 4 * 2**20


class EventSplitter:
    """Cuts a stream of bytes into the data of its events, in any server's style.

    Lines end with LF or CRLF, a space may follow `data:`, and comments and other fields are left out.
    """

    def __init__(self) -> None:
        self._held = b""
        self._data: list[bytes] = []
        self._size_bytes = 0
        self._skips = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that is complete now. Events longer than the bound are left out."""
        *lines, self._held = (self._held + chunk).split(b"\n")
        found = [data for line in lines if (data := self._line(line.removesuffix(b"\r"))) is not None]
        if len(self._held) > EVENT_BYTES_MAX:
            self._held, self._skips = b"", True
        return found

    def end(self) -> list[bytes]:
        """The unfinished event at the end: servers that stop without the last empty line meant to send it."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> bytes | None:
        if self._skips:
            self._skips = False
        elif line.startswith(b"data:") and self._size_bytes + len(line) <= EVENT_BYTES_MAX:
            self._data.append(line[5:].removeprefix(b" "))
            self._size_bytes += len(line)
        if line or not self._data:
            return None
        data, self._data, self._size_bytes = b"\n".join(self._data), [], 0
        return data
