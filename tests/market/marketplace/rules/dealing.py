"""Records that buyer and seller sign on an allocation. Any party may submit them to the marketplace."""

from dataclasses import dataclass, field

from accounting.money import format_usd
from market.protocol.channels.statements import Receipt, Voucher
from market.protocol.channels.terms import ChannelTerms
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record
from tests.market.parties import signed_record
from tests.market.trade import DIGEST, PRICES, cost_nano

MOST_TOKENS = 10_000


@dataclass
class Dealing:
    """Requests served one after the other on their lanes; `due_nano` is what they come to."""

    terms: ChannelTerms
    buyer: str = "buyer"
    seller: str = "seller"
    records: list[Record] = field(default_factory=list)
    due_nano: int = 0
    tokenizer: str | None = None
    _lanes: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def due_usd(self) -> str:
        return format_usd(self.due_nano)

    def serve(
        self,
        lane: int = 0,
        prompt_tokens: int = 1000,
        completion_tokens: int = 500,
        *,
        tells: int = 0,
        signs: bool = True,
        transcript: str = DIGEST,
    ) -> list[Record]:
        """One request: its voucher, the seller's receipt (of `tells` tokens more), the buyer's if it `signs`."""
        seq, base_nano = self._lanes.get(lane, (0, 0))
        charge_nano = cost_nano(prompt_tokens, completion_tokens)
        ceiling = Amount(base_nano + cost_nano(prompt_tokens, MOST_TOKENS))
        prices = PRICES, Amount(base_nano), ceiling
        voucher = Voucher(self.terms.channel, lane, seq + 1, DIGEST, DIGEST, *prices, self.tokenizer)
        promise = signed_record(self.buyer, "voucher", voucher, f"{lane}", seq + 1)
        counted = [(self.seller, completion_tokens + tells), *([(self.buyer, completion_tokens)] if signs else [])]
        made = [promise]
        for by, tokens in counted:
            named = self.terms.channel, lane, seq + 1, 0, promise.digest
            receipt = Receipt(*named, prompt_tokens, 0, tokens, transcript, is_final=True)
            made.append(signed_record(by, "receipt", receipt, f"{lane}", seq + 1))
        self._lanes[lane] = (seq + 1, base_nano + charge_nano)
        self.due_nano += charge_nano
        self.records += made
        return made
