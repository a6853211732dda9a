"""The measured usage of an answer."""

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from accounting.ledger.postings import CountSource
from accounting.metering.counts import counts_of
from accounting.metering.delivered import Delivered, count_all

_COST = re.compile("[0-9]{1,15}")


class Meter(Struct):
    """Counts of one answer; the lane fills it while the bytes pass.

    `finish_reasons` are those of its choices, in order, if they were seen. `reasoning_tokens` and `tool_tokens`
    are part of `completion_tokens`, if the counter distinguished them. `delivered` is the text that a tokenizer
    counts after the answer (gateway.billing.recount), if any. `cost_nano` is the total owed to all sellers of a
    bought answer, counted by this gateway's buyer.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    source: CountSource = "estimate"
    compute_ns: int = 0
    is_complete: bool = False
    finish_reasons: tuple[str, ...] = ()
    reasoning_tokens: int = 0
    tool_tokens: int = 0
    delivered: tuple[Delivered, ...] = ()
    cost_nano: int | None = None

    def read(self, usage: Any) -> bool:
        """Take the parsed usage of a backend's answer or event; return False if it is not plausible."""
        counts = counts_of(usage)
        if counts is None:
            return False
        self.prompt_tokens, self.completion_tokens, self.cached_tokens, self.reasoning_tokens = counts
        self.source = "upstream"
        cost = usage.get("cost_nano")
        self.cost_nano = None if cost is None else _cost_of(cost)
        return True

    def count_text(self, choices: Iterable[Delivered]) -> None:
        """Estimate tokens from the characters, if there is no count or not all counted text has arrived."""
        counts = count_all(None, choices)
        self.completion_tokens = counts.completion_tokens
        self.reasoning_tokens = counts.reasoning_tokens
        self.tool_tokens = counts.tool_tokens
        self.source = counts.source

    def as_usage(self) -> dict[str, Any]:
        """The counts as a `usage` object in OpenAI's shape."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage

    def take(self, counted: "Meter") -> None:
        """Take over the token counts of another meter and their source."""
        self.prompt_tokens = counted.prompt_tokens
        self.cached_tokens = counted.cached_tokens
        self.completion_tokens = counted.completion_tokens
        self.reasoning_tokens = counted.reasoning_tokens
        self.tool_tokens = counted.tool_tokens
        self.source = counted.source
        self.cost_nano = counted.cost_nano


def _cost_of(text: Any) -> int | None:
    """Return the cost in nano-USD, which is accepted only from this gateway's own buyer."""
    return int(text) if isinstance(text, str) and _COST.fullmatch(text) else None
