"""Tracks the part of an answer that reached its caller. That text is charged, wherever the answer breaks off."""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from accounting.metering.delivered import Delivered, count_all
from gateway.billing.recount import Recounter
from gateway.dialects.openai import GENERATES
from gateway.lanes.base import Call, Meter, Offer
from gateway.lanes.events import events_of
from gateway.lanes.transcript import Transcript, generated
from gateway.requests.client import Client, ClientSink
from runtime.http.api_error import ApiError

# The maximum size of one write. Only writes that the socket accepted in full are charged. A client that keeps up
# gets chunks as they arrive; a slow client gets one event at a time.
PIECE_BYTES_MAX = 2**10


def heard(client: Client, call: Call, offer: Offer | None, recounter: Recounter) -> "RecordingSink | None":
    """Return a client that records delivered text; None if no text is counted, as for most local answers."""
    if offer is None or call.kind not in GENERATES:
        return None
    is_checked = recounter.checks and recounter.wants_check(offer.counted_as)
    if offer.price is not None and call.generation.is_stream:
        is_countable = recounter.tokenizers.knows(offer.counted_as)
        return AcknowledgedSink(client, is_countable=is_countable, is_checked=is_checked)
    return RecordingSink(client) if is_checked else None


class RecordingSink(ClientSink):
    """A client whose answer is also read, so that its tokens can be counted."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._said = Transcript()

    def tell(
        self,
        meter: Meter,
        call: Call,  # noqa: ARG002 - the interface requires it
        *,
        is_whole: bool,
        others: tuple[Delivered, ...] = (),  # noqa: ARG002
    ) -> None:
        """Record the delivered text if the backend's count of a whole answer is to be checked."""
        if is_whole and meter.source == "upstream":
            meter.delivered = self._said.choices()

    async def arrive(self) -> None:
        """Return when the written answer counts as delivered."""

    def write(self, data: bytes) -> None:
        self._out.write(data)
        self._said.add(data)


class AcknowledgedSink(RecordingSink):
    """A client whose answer is charged up to the bytes that the socket accepted.

    Nothing more is written while bytes wait here: bytes that wait when the caller disconnects are undelivered.
    """

    def __init__(self, client: Client, *, is_countable: bool, is_checked: bool) -> None:
        """`is_countable`: a known tokenizer will count it exactly."""
        super().__init__(client)
        self._is_countable = is_countable
        self._is_checked = is_checked
        self._waiting: deque[bytes] = deque()
        self._unsure: bytes | None = None
        """The last chunk written, if the socket did not accept all of it."""
        self._piece_bytes = PIECE_BYTES_MAX

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], *, is_stream: bool) -> None:
        super().begin(status, headers, is_stream=is_stream)
        self._out.follow()

    def write(self, data: bytes) -> None:
        if self.is_full:
            self._waiting.append(data)
        elif len(data) <= self._piece_bytes:
            self._put(data)
        else:
            self._waiting.extend(_pieces(data, self._piece_bytes))
            self._put_waiting()

    @property
    def is_full(self) -> bool:
        # A client that disconnected delays nothing: no more bytes arrive there.
        return not self._out.is_gone and self._lags

    @property
    def _lags(self) -> bool:
        """Whether some bytes were not accepted; the client may have disconnected before."""
        return self._unsure is not None or bool(self._waiting)

    async def arrive(self) -> None:
        await self.drain()

    def has_all(self, choices: int) -> bool:
        """Return whether the ends of this number of choices have been delivered."""
        return not self.is_full and self._said.finished() >= choices

    def tell(self, meter: Meter, call: Call, *, is_whole: bool, others: tuple[Delivered, ...] = ()) -> None:
        """Charge a whole answer by its count, and a bought answer that was sent in full by the buyer's count.

        Charge all other answers by the text that arrived.

        A count of zero tokens is ignored. `others` is the text delivered to other clients of the same answer: the
        longer text is charged.
        """
        is_counted = is_whole or (meter.cost_nano is not None and not self._lags)
        if is_counted and meter.source != "estimate" and meter.completion_tokens:
            if self._is_checked:
                super().tell(meter, call, is_whole=is_whole)
            return
        # Do not charge the caller for text that sellers are owed for but that did not arrive.
        meter.cost_nano = None
        delivered = self._said.by_index()
        if self._out.keeps_calls:
            delivered = {index: replace(each, calls=()) for index, each in delivered.items()}
        request = call.request
        choices = max(generated(delivered, request), generated(dict(enumerate(others)), request), key=_tokens)
        meter.count_text(choices)
        if meter.completion_tokens and not meter.prompt_tokens:
            meter.prompt_tokens = call.prompt_tokens
        meter.delivered = choices if self._is_countable else ()

    async def drain(self) -> None:
        """Return when the socket has accepted everything, or the client stopped reading."""
        while self.is_full:
            await self._out.drain()
            if self._out.is_gone:
                return
            if self._unsure is not None:
                self._said.add(self._unsure)
                self._unsure = None
            self._put_waiting()

    def break_off(self, error: ApiError) -> None:
        """Send the waiting bytes uncharged: the caller did not get an answer."""
        for data in self._waiting:
            self._out.write(data)
        self._waiting.clear()
        super().break_off(error)

    def _put_waiting(self) -> None:
        while self._waiting and self._unsure is None:
            data = self._waiting.popleft()
            if len(data) > self._piece_bytes:
                self._waiting.extendleft(reversed(list(_pieces(data, self._piece_bytes))))
                data = self._waiting.popleft()
            self._put(data)

    def _put(self, data: bytes) -> None:
        self._out.write(data)
        if self._out.is_full:
            self._unsure = data
            self._piece_bytes = 1
        elif not self._out.is_gone:
            self._said.add(data)


def _tokens(choices: tuple[Delivered, ...]) -> int:
    return count_all(None, choices).completion_tokens


def _pieces(data: bytes, bytes_max: int) -> Iterator[bytes]:
    """Yield groups of whole events of at most `bytes_max` bytes; a longer event is a separate group."""
    piece = b""
    for event in events_of(data):
        if piece and len(piece) + len(event) > bytes_max:
            yield piece
            piece = b""
        piece += event
    if piece:
        yield piece
