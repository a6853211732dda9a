"""Count the tokens of a delivered answer. Everyone who has the text gets the same count.

The count depends on the text alone: not on its chunks, and not on what its backend reports. Buyer, seller and
marketplace call the same function. Special tokens are not added, because the buyer pays only for delivered text.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from accounting.errors import TextNotCounted
from accounting.ledger.postings import CountSource
from accounting.metering.counts import tokens_of_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SEGMENT_CHARS = 2**16
"""Longer texts are counted in segments of this many characters, so that no count takes long."""


class Called(NamedTuple):
    """A tool call in an answer. Its arguments are JSON as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """One assembled choice of an answer. Refusals belong to the content."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Called, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens by kind. `completion_tokens` is their sum."""

    content_tokens: int
    reasoning_tokens: int
    tool_tokens: int
    source: CountSource

    @property
    def completion_tokens(self) -> int:
        return self.content_tokens + self.reasoning_tokens + self.tool_tokens


class TokenCounter:
    """Count the tokens of texts with one tokenizer. `sha256` identifies the file that it was read from."""

    def __init__(self, tokenizer: "Tokenizer", sha256: str) -> None:
        # Many tokenizer.json files enable truncation and padding, which would change the count.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.sha256 = sha256

    def count(self, texts: Iterable[str]) -> int:
        """Return the sum of the texts' tokens, each counted alone and at most its bytes. Raises TextNotCounted."""
        known = [readable(text) for text in texts]
        cut = [_segments(text) for text in known]
        tokens = iter(self.segment_tokens([*chain.from_iterable(cut)]))
        # A byte is at most one token. Some tokenizers produce more, which were never delivered.
        return sum(
            min(sum(islice(tokens, len(segments))), len(text.encode()))
            for text, segments in zip(known, cut, strict=True)
        )

    def segment_tokens(self, segments: Sequence[str]) -> list[int]:
        """Return the tokens of each segment of at most SEGMENT_CHARS characters. Raises TextNotCounted."""
        try:
            return [len(self._tokenizer.encode(each, add_special_tokens=False).ids) for each in segments]
        except BaseException as error:
            if is_librarys(error):
                raise TextNotCounted(f"tokenizer {self.sha256[:12]}: {type(error).__name__}") from error
            raise

    def remembering(self) -> "TokenCounter":
        """Return a counter for growing texts: it counts each complete segment only once."""
        return _Remembering(self)


class _Remembering(TokenCounter):
    def __init__(self, counter: TokenCounter) -> None:
        # The parent's constructor needs a tokenizer. This one wraps another counter.
        self._counter = counter
        self.sha256 = counter.sha256
        self._known: dict[bytes, int] = {}

    def segment_tokens(self, segments: Sequence[str]) -> list[int]:
        names = [_name(each) if len(each) == SEGMENT_CHARS else b"" for each in segments]
        fresh = [place for place, name in enumerate(names) if name not in self._known]
        counted = self._counter.segment_tokens([segments[place] for place in fresh]) if fresh else []
        found = dict(zip(fresh, counted, strict=True))
        self._known |= {names[place]: tokens for place, tokens in found.items() if names[place]}
        return [found[place] if place in found else self._known[name] for place, name in enumerate(names)]


def _segments(text: str) -> list[str]:
    if len(text) <= SEGMENT_CHARS:
        return [text] if text else []
    return [text[start : start + SEGMENT_CHARS] for start in range(0, len(text), SEGMENT_CHARS)]


def _name(segment: str) -> bytes:
    return hashlib.sha256(segment.encode()).digest()


def is_librarys(error: BaseException) -> bool:
    """Return whether the tokenizers library failed: it raises plain Exception, or panics."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def count_delivered(tokenizer: TokenCounter | None, delivered: Delivered) -> Counts:
    """Count one choice: content, reasoning, and each call's name and arguments, each text by itself.

    Without a tokenizer, four bytes of UTF-8 are a token: an ASCII letter is a quarter of one, a Chinese character
    three quarters. The sums for content, reasoning and calls are rounded up. A seller cannot game this rule by
    splitting a text into other tokens.
    """
    count = _characters if tokenizer is None else tokenizer.count
    calls = chain.from_iterable(delivered.calls)
    counted = (count((delivered.content,)), count((delivered.reasoning,)), count(calls))
    return Counts(*counted, "characters" if tokenizer is None else "tokenizer")


def count_all(tokenizer: TokenCounter | None, choices: Iterable[Delivered]) -> Counts:
    """Count every choice of an answer and add them up."""
    counts = [count_delivered(tokenizer, each) for each in choices]
    return Counts(
        sum(each.content_tokens for each in counts),
        sum(each.reasoning_tokens for each in counts),
        sum(each.tool_tokens for each in counts),
        "characters" if tokenizer is None else "tokenizer",
    )


def _characters(texts: Iterable[str]) -> int:
    return tokens_of_bytes(sum(map(_size_bytes, texts)))


def readable(text: str) -> str:
    """Return the text as its reader sees it: separated halves of a surrogate pair become one character again.

    A lone half becomes U+FFFD, as wherever JSON is shown.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _size_bytes(text: str) -> int:
    """Return the size in bytes of UTF-8."""
    return len(text) if text.isascii() else len(readable(text).encode())
