"""A listing's prices, and what a request will really cost where not every one is answered."""

from msgspec import Struct

from accounting.money import Price, charge
from market.records.amounts import Amount


class Prices(Struct, frozen=True):
    """Nano-USD per million tokens, and `request` for each request that is answered. OpenRouter's names."""

    prompt: Amount
    completion: Amount
    input_cache_read: Amount
    request: Amount = Amount(0)

    @property
    def price(self) -> Price:
        """As the books have it: plain integers."""
        return Price(int(self.prompt), int(self.input_cache_read), int(self.completion))


def cost_nano(prices: Prices, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
    """What an answer costs, in nano-USD. Where nothing was answered, the prompt is free too.

    Raises:
        AmountInvalid: counts or a result that no event may carry.
    """
    if completion_tokens == 0:
        return 0
    return int(prices.request) + charge(prices.price, prompt_tokens, cached_tokens, completion_tokens)


def effective_nano(nano: int, success_rate: float, waited_s: float = 0.0, second_nano: int = 0) -> float:
    """What one answer costs in the end: failed attempts count, and seconds beyond what was wanted.

    `success_rate` is above 0; `waited_s` are seconds too late, `second_nano` what one of them is worth.
    """
    return nano / success_rate + max(0.0, waited_s) * second_nano
