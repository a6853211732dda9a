"""Counts answers' text with their models' tokenizers, in the background on the settlement thread.

Answers charged by their text get their exact count here. A few answers that backends counted are counted again as
a check.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from msgspec import structs

from accounting.ledger.postings import UsageRecord
from accounting.metering.delivered import Counts, Delivered, count_all
from accounting.metering.prices import PricedModel
from accounting.metering.tokenizers import Tokenizers
from accounting.rules.held import CloudBill
from gateway.billing.spool import Settlement
from gateway.metrics.metrics import Metrics

log = structlog.get_logger(__name__)

DIFFERENCE_RATIO_MAX = 0.02
# A backend's count includes the end token and the markers of calls and reasoning, which are not in the text.
_UNSEEN_TOKENS = 8
# Texts that wait to be counted use memory. If more ended requests than this wait, characters estimate the count.
WAITING_MAX = 512


@dataclass(frozen=True, slots=True)
class Recount:
    """The text of an answer, to be counted by the tokenizer of `model`.

    `price` is the price of the counted text, if it is paid. With `is_check` the backend's own count stands.
    `correct`, called on any thread, gets the increase of the charge, in nano-USD.
    """

    model: str
    choices: tuple[Delivered, ...]
    price: PricedModel | None = None
    is_check: bool = False
    correct: Callable[[int], object] | None = None


class Recounter:
    """Owns the tokenizers. The share `check_ratio` of answers counted by backends is counted again."""

    def __init__(self, tokenizers: Tokenizers, metrics: Metrics, check_ratio: float = 0.0) -> None:
        self.tokenizers = tokenizers
        self._metrics = metrics
        self._check_ratio = check_ratio
        self.checks = check_ratio > 0
        """Whether any answers are selected for a check."""

    def wants_check(self, model: str) -> bool:
        """Return whether the answer that begins now is selected for a check."""
        return random.random() < self._check_ratio and self.tokenizers.knows(model)  # noqa: S311  a sample

    def count(self, model: str, choices: tuple[Delivered, ...]) -> Counts | None:
        """Count by the model's tokenizer; None if there is none. Slow. Raises TextNotCounted."""
        counter = self.tokenizers.find(model)
        return None if counter is None else count_all(counter, choices)

    def counted(self, settlement: Settlement, recount: Recount) -> Settlement:
        """Return the settlement with the exact count, or unchanged if there is no tokenizer. Slow."""
        counts = self.count(recount.model, recount.choices)
        if counts is None:
            return settlement
        if recount.is_check:
            self._check(settlement.usage, counts)
            return settlement
        usage = structs.replace(
            settlement.usage,
            completion_tokens=counts.completion_tokens,
            reasoning_tokens=counts.reasoning_tokens,
            tool_tokens=counts.tool_tokens,
            count_source=counts.source,
        )
        bill = bill_of(recount.price, usage) if recount.price else None
        return structs.replace(settlement, usage=usage, bill=bill)

    def _check(self, usage: UsageRecord, counts: Counts) -> None:
        """Compare the backend's count with this count."""
        counted, reported = counts.completion_tokens, usage.completion_tokens
        if not counted:
            return
        self._metrics.metering_difference_ratio.labels(usage.lane).observe(reported / counted)
        if abs(reported - counted) > max(DIFFERENCE_RATIO_MAX * counted, _UNSEEN_TOKENS):
            log.warning(
                "backend's token count differs",
                request_id=usage.request_id,
                provider=usage.provider,
                model=usage.model,
                said_tokens=reported,
                counted_tokens=counted,
            )


def bill_of(price: PricedModel, usage: UsageRecord) -> CloudBill | None:
    """Return a provider's bill for a request with this answer; None if the answer has no tokens."""
    if not usage.completion_tokens:
        return None
    cost_nano = price.charge_for(
        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
    )
    return CloudBill(price.provider, cost_nano, cost_nano, price.id)
