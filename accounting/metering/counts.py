"""Token counts from outside: what a backend counts, and estimates and bounds for texts without a tokenizer."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from accounting.money import MAX_TOKENS

_BYTES_PER_TOKEN = 4
_TEMPLATE_TOKENS_MAX = 16

_DETAILS = ("prompt_tokens_details", "completion_tokens_details")


class UsageCounts(NamedTuple):
    """What a backend counted. The last two are parts of the first two."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int


def counts_of(usage: Any) -> UsageCounts | None:
    """Read a `usage` object in OpenAI's shape; None if it counts nothing, or if any count is no integer in range.

    A count that is absent or null is zero. More cached tokens than prompt tokens, or more reasoning tokens than
    completion tokens, count as all of them.
    """
    if not isinstance(usage, Mapping) or not _has_sound_counts(usage):
        return None
    of_prompt, of_completion = (usage.get(name) or {} for name in _DETAILS)
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0, completion or 0
    cached, reasoning = of_prompt.get("cached_tokens") or 0, of_completion.get("reasoning_tokens") or 0
    return UsageCounts(prompt, completion, min(cached, prompt), min(reasoning, completion))


def _has_sound_counts(usage: Mapping[Any, Any]) -> bool:
    details = [usage[name] for name in _DETAILS if usage.get(name) is not None]
    if not all(isinstance(detail, Mapping) for detail in details):
        return False
    return all(
        _is_count(value)
        for group in (usage, *details)
        for name, value in group.items()
        if str(name).endswith("_tokens") and value is not None
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS


def estimate_tokens(text: str) -> int:
    """Return what a text of unknown tokenizer comes to: a token for every four bytes of UTF-8, rounded up."""
    return tokens_of_bytes(len(text) if text.isascii() else len(text.encode(errors="replace")))


def tokens_of_bytes(size_bytes: int) -> int:
    """Return the tokens that so many bytes of UTF-8 count as, rounded up."""
    return -(-size_bytes // _BYTES_PER_TOKEN)


def tokens_max(texts: Iterable[str]) -> int:
    """Return a bound on the tokens of the prompt made of these texts, where a token stands for at least a byte.

    That is so with byte-level vocabularies, special tokens apart: what a usual chat template puts around each
    message is allowed for on top. Pictures, and what a provider adds to explain tools, are not in it.
    """
    return sum(len(text.encode()) + _TEMPLATE_TOKENS_MAX for text in texts) + _TEMPLATE_TOKENS_MAX
