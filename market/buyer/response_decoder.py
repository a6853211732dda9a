"""One job's answer as it arrives: opened piece by piece, checked, and counted by ourselves.

The seller's own figures, in receipts, are kept as evidence and compared. They never decide what is paid, except
for cached prompt tokens, which cost less.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from market.buyer.carrier import Carrier, Event, Nonce
from market.buyer.chunk_splitter import PART_CHARS, parts_of
from market.buyer.chunks import Chunks
from market.buyer.errors import Garbled, SellerFailed
from market.errors import JobInvalid, MarketError, StatementInvalid
from market.protocol.channels.job import Cut, Piece, read_cut, read_piece
from market.protocol.channels.statements import Delivery, Promise, read_receipt
from market.protocol.channels.terms import ChannelTerms
from market.protocol.counting.answer import CHARS_MAX, AnswerSoFar
from market.protocol.counting.padding_flags import padding_flags
from market.protocol.records.envelope import open_record
from market.protocol.records.key_status import StandingOf
from market.protocol.sealing.request import SealedRequest
from market.protocol.sealing.stream import Opener

Json = dict[str, Any]
Flag = Literal["invisible", "blank", "repeated", "inflated", "transcript"]

RECEIPTS_MAX = 4096
_LOOKED_AT_CHARS = 8192
_CUTS = ("preempted", "draining", "failed")
"""Valid reasons for an answer to end early."""


@dataclass
class ResponseDecoder:
    """Decode the bytes of one seller's stream."""

    sealed: SealedRequest
    promise: Promise
    terms: ChannelTerms
    standing: StandingOf
    chunks: Chunks
    answer: AnswerSoFar
    chars_max: int = CHARS_MAX
    """A longer answer exceeds what was requested, in any tokenizer."""
    claim: Delivery | None = None
    """The seller's newest receipt."""
    cut: Cut | None = None
    has_ended: bool = False
    _carrier: Carrier = field(default_factory=Carrier)
    _opener: Opener | None = None
    _receipts: int = 0

    def feed(self, data: bytes) -> Iterator[list[Json]]:
        """Yield the choices of every chunk in these bytes, as our callers get them.

        Chunks that the caller did not iterate over do not count.

        Raises:
            Garbled: the bytes are not a valid answer.
        """
        try:
            for event in self._carrier.feed(data):
                yield from self._take(event)
        except Garbled:
            raise
        except MarketError as error:
            raise Garbled(f"a piece of its answer is invalid: {error}") from None

    def flags(self, claimed_nano_max: int) -> tuple[Flag, ...]:
        """Return anomalies of the answer; `claimed_nano_max` is the most an honest receipt would claim."""
        flags: list[Flag] = []
        for choice in self.answer.choices():
            flags += padding_flags(_sample(choice.content))
            flags += padding_flags(_sample(choice.reasoning))
        claim = self.claim
        if claim is not None and claim.amount_nano > claimed_nano_max:
            flags.append("inflated")
        if claim is not None and claim.receipt.is_final and claim.receipt.transcript != self.answer.transcript():
            flags.append("transcript")
        return tuple(dict.fromkeys(flags))

    def check_end(self) -> None:
        """Check that the answer is complete.

        Raises:
            SellerFailed: the answer is incomplete.
        """
        if self.cut is not None:
            # The seller chooses the code. In the middle of an answer, do not accept one that would let the request
            # be retried or would blame us.
            is_usual = self.cut.code in _CUTS or not self.answer.chars
            raise SellerFailed(f"it stopped: {self.cut.code}", self.cut.code if is_usual else "broke_off")
        if not self.has_ended or not self.chunks.has_finished:
            raise SellerFailed("it ended in the middle of its answer", "broke_off")

    def _take(self, event: Event) -> Iterator[list[Json]]:
        if isinstance(event, Nonce):
            self._opener = self.sealed.answer(event.value)
            return
        assert self._opener is not None, "the carrier begins with the nonce"
        piece = read_piece(self._opener.open(event.piece))
        self.has_ended = self._opener.has_ended
        if piece.kind == "d":
            yield from self._chunk(piece)
        elif piece.kind == "r":
            self._receipt(piece)
        else:
            self.cut = _cut(piece)

    def _chunk(self, piece: Piece) -> Iterator[list[Json]]:
        if self.cut is not None:
            raise Garbled("it continues after its end")
        if self.answer.chars > self.chars_max:
            raise Garbled("it is longer than requested")
        choices = self.chunks.read(piece.content)
        is_short = len(piece.content) <= PART_CHARS
        for part in (choices,) if is_short else parts_of(choices):
            try:
                self.answer.add({"choices": part})
            except StatementInvalid as error:
                raise Garbled(str(error)) from None
            if part:
                yield part

    def _receipt(self, piece: Piece) -> None:
        self._receipts += 1
        if self._receipts > RECEIPTS_MAX:
            raise Garbled("it sends too many receipts")
        record = open_record(piece.content)
        delivery = read_receipt(record, self.promise, self.terms, self.standing)
        if record.issuer != self.terms.seller:
            raise Garbled("a receipt is not by the seller")
        if self.claim is None or delivery.receipt.part > self.claim.receipt.part:
            self.claim = delivery


def _sample(text: str) -> str:
    """Return a text; of a long one, its beginning, middle and end."""
    if len(text) <= 3 * _LOOKED_AT_CHARS:
        return text
    middle = len(text) // 2
    return text[:_LOOKED_AT_CHARS] + text[middle : middle + _LOOKED_AT_CHARS] + text[-_LOOKED_AT_CHARS:]


def _cut(piece: Piece) -> Cut:
    try:
        return read_cut(piece)
    except JobInvalid:
        return Cut("failed")
