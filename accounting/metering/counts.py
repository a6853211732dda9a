"""Read token counts from backends, and estimate or bound the tokens of texts without a tokenizer."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from accounting.money import MAX_TOKENS

_BYTES_PER_TOKEN = 4
_TEMPLATE_TOKENS_MAX = 16
_ONLY_INTEGERS = {int}


class UsageCounts(NamedTuple):
    """The counts of a backend. The last two are parts of the first two."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int


def counts_of(usage: Any) -> UsageCounts | None:
    """Read a `usage` object in OpenAI's shape. Return None if it counts nothing or any count is no integer in
    range.

    A count that is absent or null is zero. More cached tokens than prompt tokens, or more reasoning tokens than
    completion tokens, count as all of them.
    """
    if not _has_sound_counts(usage):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0, completion or 0
    cached = reasoning = 0
    if (details := usage.get("prompt_tokens_details")) is not None:
        if not _has_sound_counts(details):
            return None
        cached = min(details.get("cached_tokens") or 0, prompt)
    if (details := usage.get("completion_tokens_details")) is not None:
        if not _has_sound_counts(details):
            return None
        reasoning = min(details.get("reasoning_tokens") or 0, completion)
    return UsageCounts(prompt, completion, cached, reasoning)


def _has_sound_counts(usage: Any) -> bool:
    """Return whether each of its counts is null or an integer in range."""
    if not isinstance(usage, dict):
        return False
    values = usage.values()
    # All at once, because every answer has one, and most have nothing but such integers.
    if set(map(type, values)) == _ONLY_INTEGERS and min(values) >= 0 and max(values) <= MAX_TOKENS:
        return True
    for name, value in usage.items():
        if type(value) is int and 0 <= value <= MAX_TOKENS:
            continue
        if value is not None and str(name).endswith("_tokens"):
            return False
    return True


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text without a tokenizer: one for every four bytes of UTF-8, rounded up."""
    return tokens_of_bytes(len(text) if text.isascii() else len(text.encode(errors="replace")))


def tokens_of_bytes(size_bytes: int) -> int:
    """Return the estimated tokens of this many bytes of UTF-8, rounded up."""
    return -(-size_bytes // _BYTES_PER_TOKEN)


def tokens_max(texts: Iterable[str]) -> int:
    """Return an upper bound on the tokens of a prompt of these texts, if a token stands for at least a byte.

    This holds for byte-level vocabularies, except for special tokens. The bound allows for what a usual chat
    template puts around each message. It leaves out pictures, and what a provider adds to explain tools.
    """
    return sum(len(text.encode()) + _TEMPLATE_TOKENS_MAX for text in texts) + _TEMPLATE_TOKENS_MAX
