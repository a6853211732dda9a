"""What local machines' tokens would have cost in the cloud, less their own cost, for known prices. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accounting.metering.usage import UsageTotal
from accounting.money import TOKENS_PER_PRICE, Price

OWN_LANES = frozenset(("cluster", "pool"))
PAID_LANES = frozenset(("cloud", "market"))


Work = tuple[str, UsageTotal]
"""The usage of one model on local machines."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Savings on work whose price is known; `unpriced` names the models without a price, in order."""

    cloud_nano: int
    own_nano: int
    priced_tokens: int
    unpriced_tokens: int
    unpriced: tuple[str, ...]

    @property
    def saved_nano(self) -> int:
        """Negative if the cloud would have been cheaper."""
        return self.cloud_nano - self.own_nano

    @property
    def is_known(self) -> bool:
        return self.priced_tokens > 0


def saving(work: Iterable[Work], prices: Mapping[str, Sequence[Price]]) -> Saving:
    """Price each work item at the cheapest price of its model; skip models without a price on both sides."""
    cloud_nano = own_nano = priced = unpriced = 0
    nameless: set[str] = set()
    for model, used in work:
        known, tokens = prices.get(model), used.prompt_tokens + used.completion_tokens
        if not known:
            unpriced += tokens
            if tokens:
                nameless.add(model)
            continue
        cloud_nano += min(worth_nano(used, price) for price in known)
        own_nano += used.own_cost_nano
        priced += tokens
    return Saving(cloud_nano, own_nano, priced, unpriced, tuple(sorted(nameless)))


def worth_nano(used: UsageTotal, price: Price) -> int:
    """Return nano-USD at the price of short prompts, rounded down so that savings are not overstated."""
    reasoning_nano = price.completion_nano if price.reasoning_nano is None else price.reasoning_nano
    total = (
        (used.prompt_tokens - used.cached_tokens) * price.prompt_nano
        + used.cached_tokens * price.cached_nano
        + (used.completion_tokens - used.reasoning_tokens) * price.completion_nano
        + used.reasoning_tokens * reasoning_nano
    )
    return total // TOKENS_PER_PRICE


def local_share(tokens_by_lane: Mapping[str, int]) -> float | None:
    """Return the share of computed tokens that ran locally; None without tokens."""
    own = sum(tokens for lane, tokens in tokens_by_lane.items() if lane in OWN_LANES)
    paid = sum(tokens for lane, tokens in tokens_by_lane.items() if lane in PAID_LANES)
    return own / (own + paid) if own + paid else None
