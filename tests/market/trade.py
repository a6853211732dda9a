"""A channel's whole life on paper: requests that were served, and every record that was signed about them."""

from dataclasses import dataclass, field

from market.protocol.channels.channel import Channel, delivered, merge, promised
from market.protocol.channels.statements import Delivery, Promise, Receipt, Voucher, read_receipt, read_voucher
from market.protocol.channels.terms import ChannelTerms
from market.protocol.channels.transcript import INTERIM_TOKENS
from market.protocol.listings import prices
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record
from tests.market.parties import STANDING, id_of, signed_record

DIGEST = "0" * 64
BUYER, SELLER = id_of("buyer"), id_of("seller")
TERMS = ChannelTerms(BUYER, SELLER, DIGEST)
PRICES = Prices(Amount(50_000_000), Amount(400_000_000), Amount(5_000_000), Amount(100))


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked and what came; `tells` is how much more than that the seller says."""

    lane: int
    prompt_tokens: int
    completion_tokens: int
    most_tokens: int = 10_000
    tells: int = 0
    is_final: bool = True

    @property
    def charge_nano(self) -> int:
        return cost_nano(self.prompt_tokens, self.completion_tokens)


@dataclass
class Trade:
    """Serves requests one after the other on their lanes, and keeps what was signed as small channels."""

    by_buyer: list[Channel] = field(default_factory=list)
    by_seller: list[Channel] = field(default_factory=list)
    truth_nano: int = 0
    _lanes: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def pieces(self) -> list[Channel]:
        return [*self.by_buyer, *self.by_seller]

    def serve(self, request: Request, *, buyer_signs: bool = True) -> None:
        seq, base_nano = self._lanes.get(request.lane, (0, 0))
        promise = vouch(
            request.lane, seq + 1, base_nano, base_nano + cost_nano(request.prompt_tokens, request.most_tokens)
        )
        self.by_buyer.append(promised(Channel(TERMS), promise))
        self._seller_signs(promise, request)
        if buyer_signs:
            final = receive("buyer", promise, request.prompt_tokens, request.completion_tokens, 0, is_final=True)
            self.by_buyer.append(delivered(Channel(TERMS), final, BUYER))
        self.truth_nano += request.charge_nano
        self._lanes[request.lane] = (seq + 1, base_nano + request.charge_nano)

    def _seller_signs(self, promise: Promise, request: Request) -> None:
        told_tokens = request.completion_tokens + request.tells
        for part, tokens in enumerate([*range(INTERIM_TOKENS, told_tokens, INTERIM_TOKENS), told_tokens]):
            is_final = request.is_final and tokens == told_tokens
            receipt = receive("seller", promise, request.prompt_tokens, tokens, part, is_final=is_final)
            self.by_seller.append(delivered(Channel(TERMS), receipt, SELLER))


def known(pieces: list[Channel]) -> Channel:
    """Return what a party knows that has received all of these."""
    channel = Channel(TERMS)
    for piece in pieces:
        channel = merge(channel, piece)
    return channel


def cost_nano(prompt_tokens: int, completion_tokens: int) -> int:
    return prices.cost_nano(PRICES, prompt_tokens, 0, completion_tokens)


def vouch(lane: int, seq: int, base_nano: int, ceiling_nano: int) -> Promise:
    amounts = Amount(base_nano), Amount(ceiling_nano)
    return read_voucher(
        voucher_record(Voucher(TERMS.channel, lane, seq, DIGEST, DIGEST, PRICES, *amounts)), TERMS, STANDING
    )


def voucher_record(voucher: Voucher, by: str = "buyer") -> Record:
    return signed_record(by, "voucher", voucher, "v", voucher.seq)


def receive(
    by: str, promise: Promise, prompt_tokens: int, completion_tokens: int, part: int, *, is_final: bool
) -> Delivery:
    voucher = promise.voucher
    receipt = Receipt(
        TERMS.channel,
        voucher.lane,
        voucher.seq,
        part,
        promise.digest,
        prompt_tokens,
        0,
        completion_tokens,
        DIGEST,
        is_final,
    )
    return read_receipt(signed_record(by, "receipt", receipt, "r", part), promise, TERMS, STANDING)
