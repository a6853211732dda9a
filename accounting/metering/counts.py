"""Read token counts from backends, and estimate or bound the tokens of texts without a tokenizer."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from accounting.money import MAX_TOKENS

_BYTES_PER_TOKEN = 4
_TEMPLATE_TOKENS_MAX = 16


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
    cached = _part(usage.get("prompt_tokens_details"), "cached_tokens")
    reasoning = _part(usage.get("completion_tokens_details"), "reasoning_tokens")
    if cached is None or reasoning is None:
        return None
    return UsageCounts(prompt, completion, min(cached, prompt), min(reasoning, completion))


def _part(details: Any, name: str) -> int | None:
    """Return a count of the details, 0 if there is none; None if the details are invalid."""
    if details is None:
        return 0
    return (details.get(name) or 0) if _has_sound_counts(details) else None


def _has_sound_counts(usage: Any) -> bool:
    """Return whether each of its counts is null or an integer in range. A plain loop, as every answer has one."""
    if not isinstance(usage, Mapping):
        return False
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
