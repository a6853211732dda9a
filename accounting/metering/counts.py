"""Counts tokens: exactly with a pinned tokenizer, as an upper bound for holds, or as an estimate that says so."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from accounting.errors import TokenizerMismatch
from accounting.ledger.postings import CountSource

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTES_PER_TOKEN = 4
_TEMPLATE_TOKENS_MAX = 16


@dataclass(frozen=True, slots=True)
class Count:
    """A number of tokens, and where it comes from."""

    tokens: int
    source: CountSource


class TokenCounter:
    """Counts the tokens of delivered text as one tokenizer sees it: the same text always costs the same.

    The count depends on the text alone, not on how it was cut into chunks on its way, and special tokens are
    not added: nobody pays for what was not said.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> Count:
        """Return the canonical count of a text."""
        return Count(len(self._tokenizer.encode(text, add_special_tokens=False).ids), "tokenizer")


def load_counter(path: Path, sha256: str) -> TokenCounter:
    """Load a tokenizer.json whose content has this SHA-256 (hex).

    Raises:
        TokenizerMismatch: the file is another one.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256.lower():
        raise TokenizerMismatch(f"{path} has SHA-256 {found}, but {sha256} is pinned")
    from tokenizers import Tokenizer  # Gateways that only estimate go without its 4 MB.

    return TokenCounter(Tokenizer.from_str(content.decode()))


def estimate(text: str) -> Count:
    """Return what a text of unknown tokenizer comes to: a token for every four bytes of UTF-8, rounded up."""
    return Count(estimate_tokens(text), "estimate")


def estimate_tokens(text: str) -> int:
    """Return the number alone, for those who add many up."""
    size_bytes = len(text) if text.isascii() else len(text.encode())
    return -(-size_bytes // _BYTES_PER_TOKEN)


def tokens_max(texts: Iterable[str]) -> int:
    """Return a bound on the tokens of the prompt made of these texts, where a token stands for at least a byte.

    That is so with byte-level vocabularies, special tokens apart: what a usual chat template puts around each
    message is allowed for on top. Pictures, and what a provider adds to explain tools, are not in it.
    """
    return sum(len(text.encode()) + _TEMPLATE_TOKENS_MAX for text in texts) + _TEMPLATE_TOKENS_MAX
