"""What local machines' tokens would have cost in the cloud, less their own cost, for known prices. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accounting.metering.usage import UsageTotal
from accounting.money import TOKENS_PER_PRICE, Price

OWN_LANES = frozenset(("cluster", "pool"))
PAID_LANES = frozenset(("cloud", "market"))


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of one model on local machines, and their cost to the owner in nano-USD."""

    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    own_cost_nano: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


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
    for each in work:
        known = prices.get(each.model)
        if not known:
            unpriced += each.tokens
            if each.tokens:
                nameless.add(each.model)
            continue
        cloud_nano += min(worth_nano(each, price) for price in known)
        own_nano += each.own_cost_nano
        priced += each.tokens
    return Saving(cloud_nano, own_nano, priced, unpriced, tuple(sorted(nameless)))


def worth_nano(work: Work, price: Price) -> int:
    """Return nano-USD at the price of short prompts, rounded down so that savings are not overstated."""
    reasoning_nano = price.completion_nano if price.reasoning_nano is None else price.reasoning_nano
    total = (
        (work.prompt_tokens - work.cached_tokens) * price.prompt_nano
        + work.cached_tokens * price.cached_nano
        + (work.completion_tokens - work.reasoning_tokens) * price.completion_nano
        + work.reasoning_tokens * reasoning_nano
    )
    return total // TOKENS_PER_PRICE


def own_work(totals: Iterable[tuple[str, str, UsageTotal]]) -> list[Work]:
    """Return the part of usage totals, each with lane and model, that ran on local machines."""
    return [
        Work(
            model,
            total.prompt_tokens,
            total.cached_tokens,
            total.completion_tokens,
            total.reasoning_tokens,
            total.own_cost_nano,
        )
        for lane, model, total in totals
        if lane in OWN_LANES
    ]


def local_share(tokens_by_lane: Mapping[str, int]) -> float | None:
    """Return the share of computed tokens that ran locally; None without tokens."""
    own = sum(tokens for lane, tokens in tokens_by_lane.items() if lane in OWN_LANES)
    paid = sum(tokens for lane, tokens in tokens_by_lane.items() if lane in PAID_LANES)
    return own / (own + paid) if own + paid else None
