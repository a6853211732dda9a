"""One job's answer on its way in: opened piece by piece, checked, counted by ourselves.

What the seller says about its own answer, in receipts, is kept as evidence and compared. It never decides what is
paid, but for tokens that it gives cheaper because it had read them before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.buying.carrier import Carrier, Event, Nonce
from gateway.buying.chunks import Chunks
from gateway.buying.errors import Garbled, SellerFailed
from gateway.buying.parting import PART_CHARS, parts_of
from market.channels.job import Cut, Piece, read_cut, read_piece
from market.channels.statements import Delivery, Promise, read_receipt
from market.channels.terms import ChannelTerms
from market.counting.answer import CHARS_MAX, AnswerSoFar
from market.counting.padding_flags import padding_flags
from market.errors import JobInvalid, MarketError, StatementInvalid
from market.records.envelope import open_record
from market.records.key_status import StandingOf
from market.sealing.request import SealedRequest
from market.sealing.stream import Opener

Json = dict[str, Any]
Flag = Literal["invisible", "blank", "repeated", "inflated", "transcript"]

RECEIPTS_MAX = 4096
_LOOKED_AT_CHARS = 8192
_CUTS = ("preempted", "draining", "failed")
"""Why an answer may end in its middle."""


@dataclass
class Hearing:
    """Fed with the bytes of a seller's stream."""

    sealed: SealedRequest
    promise: Promise
    terms: ChannelTerms
    standing: StandingOf
    chunks: Chunks
    answer: AnswerSoFar
    chars_max: int = CHARS_MAX
    """What is longer is longer than was asked for, by any tokenizer."""
    claim: Delivery | None = None
    """The seller's newest receipt."""
    cut: Cut | None = None
    has_ended: bool = False
    _carrier: Carrier = field(default_factory=Carrier)
    _opener: Opener | None = None
    _receipts: int = 0

    def feed(self, data: bytes) -> Iterator[list[Json]]:
        """The choices of every chunk that came with these bytes, as our callers get them.

        What was not asked for of it was not heard, and does not count.

        Raises:
            Garbled: it is no answer.
        """
        try:
            for event in self._carrier.feed(data):
                yield from self._take(event)
        except Garbled:
            raise
        except MarketError as error:
            raise Garbled(f"a piece of its answer is none: {error}") from None

    def flags(self, claimed_nano_max: int) -> tuple[Flag, ...]:
        """What was odd about the answer; `claimed_nano_max` is the most that an honest receipt would come to."""
        flags: list[Flag] = []
        for said in self.answer.choices():
            flags += padding_flags(_sample(said.content))
            flags += padding_flags(_sample(said.reasoning))
        claim = self.claim
        if claim is not None and claim.amount_nano > claimed_nano_max:
            flags.append("inflated")
        if claim is not None and claim.receipt.is_final and claim.receipt.transcript != self.answer.transcript():
            flags.append("transcript")
        return tuple(dict.fromkeys(flags))

    def check_end(self) -> None:
        """Whether it came to its own end.

        Raises:
            SellerFailed: it did not.
        """
        if self.cut is not None:
            # The code is the seller's own word: in the middle of an answer none says that it may be asked again,
            # or that it was our mistake.
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
            raise Garbled("it goes on behind its end")
        if self.answer.chars > self.chars_max:
            raise Garbled("it says more than was asked for")
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
            raise Garbled("it sends more receipts than any answer has")
        record = open_record(piece.content)
        delivery = read_receipt(record, self.promise, self.terms, self.standing)
        if record.issuer != self.terms.seller:
            raise Garbled("a receipt is by somebody else")
        if self.claim is None or delivery.receipt.part > self.claim.receipt.part:
            self.claim = delivery


def _sample(text: str) -> str:
    """A text, or of a long one its beginning, a part from its middle, and its end."""
    if len(text) <= 3 * _LOOKED_AT_CHARS:
        return text
    middle = len(text) // 2
    return text[:_LOOKED_AT_CHARS] + text[middle : middle + _LOOKED_AT_CHARS] + text[-_LOOKED_AT_CHARS:]


def _cut(piece: Piece) -> Cut:
    try:
        return read_cut(piece)
    except JobInvalid:
        return Cut("failed")
