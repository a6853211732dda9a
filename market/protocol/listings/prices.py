"""Define a listing's prices, and what an answer costs by them."""

from msgspec import Struct

from accounting.money import Price, charge
from market.protocol.records.amounts import Amount


class Prices(Struct, frozen=True):
    """Nano-USD per million tokens, and `request` per answered request. The names are OpenRouter's."""

    prompt: Amount
    completion: Amount
    input_cache_read: Amount
    request: Amount = Amount(0)

    @property
    def price(self) -> Price:
        """The prices as the ledger takes them: plain integers."""
        return Price(int(self.prompt), int(self.input_cache_read), int(self.completion))


def cost_nano(prices: Prices, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
    """Return what an answer costs, in nano-USD. If nothing was answered, the prompt is free too.

    Raises:
        AmountInvalid: no event may carry the counts or the result.
    """
    if completion_tokens == 0:
        return 0
    return int(prices.request) + charge(prices.price, prompt_tokens, cached_tokens, completion_tokens)
