"""Size limits on providers' answers, set on every httpx client of the process: litellm's adapters have none.

Requests ask for uncompressed answers, and compressed ones are refused: some kilobytes could expand to gigabytes.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any, ClassVar

import httpx

WHOLE_BYTES_MAX = 16 * 2**20
"""The maximum size parsed in one step, while all other requests of the worker wait."""
STREAM_BYTES_MAX = 128 * 2**20
PART_BYTES_MAX = 4 * 2**20
"""The maximum size of a stream's event or line: adapters buffer it, and some copy it with every chunk."""
HOST_BYTES_MAX = 64 * 2**20
"""The maximum size of all whole answers that one host is sending."""
ERROR_BYTES_MAX = 16 * 2**10
"""The rest of an error's body is left unread: litellm searches it with many patterns, for seconds per megabyte."""

streams: ContextVar[bool] = ContextVar("streams", default=False)
"""Whether the current request asks for a stream, which is forwarded as it arrives."""

_ENDS = {
    "text/event-stream": (b"\n\n", b"\n\r\n", b"\r\r"),
    "application/vnd.amazon.eventstream": (),  # binary; its reader has a bound of its own
}
"""How the parts of a stream end, by content type; those of others are lines."""


class AnswerTooLarge(Exception):
    """The provider's answer exceeds a bound."""


class AnswerCompressed(Exception):
    """The provider's answer is compressed, though it was asked not to be."""


def bound_answers() -> None:
    """Set the bounds on all clients created later."""
    httpx.Client.__init__ = _with_hooks(  # type: ignore[method-assign]
        httpx.Client.__init__, _ask_plain, _bound
    )
    httpx.AsyncClient.__init__ = _with_hooks(  # type: ignore[method-assign]
        httpx.AsyncClient.__init__, _ask_plain_async, _bound_async
    )


def _with_hooks(initialize: Any, on_request: Any, on_response: Any) -> Any:
    @wraps(initialize)
    def initialize_bounded(client: httpx.Client | httpx.AsyncClient, *args: Any, **kwargs: Any) -> None:
        initialize(client, *args, **kwargs)
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks["request"], on_request],
            "response": [on_response, *hooks["response"]],
        }

    return initialize_bounded


def _ask_plain(request: httpx.Request) -> None:
    request.headers["accept-encoding"] = "identity"


async def _ask_plain_async(request: httpx.Request) -> None:
    _ask_plain(request)


def _bound(response: httpx.Response) -> None:
    """Raises AnswerCompressed."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise AnswerCompressed
    response.stream = _BoundedStream(response)


async def _bound_async(response: httpx.Response) -> None:
    _bound(response)


class _BoundedStream(httpx.AsyncByteStream, httpx.SyncByteStream):
    """Passes a body on, and raises AnswerTooLarge if it exceeds a bound."""

    _held: ClassVar[Counter[str]] = Counter()
    """Bytes of whole answers under way, by host."""

    def __init__(self, response: httpx.Response) -> None:
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._stream: Any = response.stream
        self._host = response.request.url.netloc.decode("ascii", "replace")
        self._is_error = response.is_error
        self._is_whole = self._is_error or not streams.get()
        self._ends = _ENDS.get(content_type, (b"\n",))
        self._size_bytes = self._part_bytes = 0
        self._tail = b""

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._count(piece)
            yield piece
            if self._has_enough:
                return

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._count(piece)
            yield piece
            if self._has_enough:
                return

    def close(self) -> None:
        self._release()
        self._stream.close()

    async def aclose(self) -> None:
        self._release()
        await self._stream.aclose()

    @property
    def _has_enough(self) -> bool:
        return self._is_error and self._size_bytes >= ERROR_BYTES_MAX

    def _count(self, piece: bytes) -> None:
        self._size_bytes += len(piece)
        if self._is_whole:
            self._held[self._host] += len(piece)
            is_in_bounds = self._size_bytes <= WHOLE_BYTES_MAX and self._held[self._host] <= HOST_BYTES_MAX
        else:
            self._count_part(piece)
            is_in_bounds = self._size_bytes <= STREAM_BYTES_MAX and self._part_bytes <= PART_BYTES_MAX
        if not is_in_bounds:
            raise AnswerTooLarge

    def _count_part(self, piece: bytes) -> None:
        """Count the bytes of the current part; its end may be split between two pieces."""
        if self._ends:
            text = self._tail + piece
            end = max(text.rfind(end) for end in self._ends)
            self._part_bytes = len(text) - end if end >= 0 else self._part_bytes + len(piece)
            self._tail = text[-2:]

    def _release(self) -> None:
        """Release the received bytes: they were read, or are dropped."""
        if self._is_whole and self._size_bytes:
            self._held[self._host] -= self._size_bytes
            self._size_bytes = 0
            if not self._held[self._host]:
                del self._held[self._host]
