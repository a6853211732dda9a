"""Tokens of texts whose tokenizer nobody has: estimates for limits, and bounds for holds."""

from collections.abc import Iterable

_BYTES_PER_TOKEN = 4
_TEMPLATE_TOKENS_MAX = 16


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
