"""How much was delivered: token counts of an answer's text, which anybody who has the text comes to alike.

The count rests on the text alone: not on how it was cut into chunks on its way, and not on what its backend says.
Buyer, seller and house call the same function. Special tokens are not added: nobody pays for what was not said.
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
"""Longer texts are counted in segments of so many characters from their beginning, so that no count takes long."""


class Called(NamedTuple):
    """A call of a tool, as the answer has it: its arguments are JSON as text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """One choice of an answer, assembled. Refusals belong to the content."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Called, ...] = ()


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens by what they said; `completion_tokens` are all of them."""

    content_tokens: int
    reasoning_tokens: int
    tool_tokens: int
    source: CountSource

    @property
    def completion_tokens(self) -> int:
        return self.content_tokens + self.reasoning_tokens + self.tool_tokens


class TokenCounter:
    """The tokens of texts as one tokenizer sees them. `sha256` names the file that it was read from."""

    def __init__(self, tokenizer: "Tokenizer", sha256: str) -> None:
        # Many a tokenizer.json says to cut prompts and to fill them up, which would be counted.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.sha256 = sha256

    def count(self, texts: Iterable[str]) -> int:
        """Return the tokens of all of them, each by itself and none more than its bytes. Raises TextNotCounted."""
        known = [readable(text) for text in texts]
        cut = [_segments(text) for text in known]
        tokens = iter(self.segment_tokens([*chain.from_iterable(cut)]))
        # No byte is more than a token; what a tokenizer makes of it beyond that was never said.
        return sum(
            min(sum(islice(tokens, len(segments))), len(text.encode()))
            for text, segments in zip(known, cut, strict=True)
        )

    def segment_tokens(self, segments: Sequence[str]) -> list[int]:
        """The tokens of each; none is longer than SEGMENT_CHARS. Raises TextNotCounted."""
        try:
            return [len(self._tokenizer.encode(each, add_special_tokens=False).ids) for each in segments]
        except BaseException as error:
            if is_librarys(error):
                raise TextNotCounted(f"tokenizer {self.sha256[:12]}: {type(error).__name__}") from error
            raise

    def remembering(self) -> "TokenCounter":
        """The same counter for texts that grow: a segment of them that is complete is counted once."""
        return _Remembering(self)


class _Remembering(TokenCounter):
    def __init__(self, counter: TokenCounter) -> None:
        # Not by its parent's constructor: what it counts with is another counter.
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
    """Whether tokenizers' library failed: it raises nothing narrower than Exception, its panics not even that."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def count_delivered(tokenizer: TokenCounter | None, delivered: Delivered) -> Counts:
    """Count one choice: content, reasoning, each call's name and arguments, every one of these texts by itself.

    Where no tokenizer is known, each UTF-8 character counts its bytes, and four bytes are a token: letters of
    ASCII are a quarter of one, Chinese characters three quarters. What remains of content, of reasoning and of
    calls is rounded up. A rule of characters cannot be gamed by how a text is cut into tokens.
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
    """The text as its reader has it: halves of a surrogate pair that came apart are one character again.

    A half that is alone is U+FFFD, as wherever JSON is shown.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _size_bytes(text: str) -> int:
    """In UTF-8."""
    return len(text) if text.isascii() else len(readable(text).encode())
