"""Detect padding in an answer: invisible characters, blank space, or repetition.

All of it is text, is counted, and may be honest: small models do fall into loops. A flag is an anomaly: the buyer
may stop the stream, and the seller is audited more. It proves nothing and changes no count.
"""

from collections.abc import Iterator
from typing import Literal
from unicodedata import category

Flag = Literal["invisible", "blank", "repeated"]

CHARS_MIN = 256
"""Shorter texts are not checked: padding them gains little, and an emoji of eight characters is honest."""
_INVISIBLE_SHARE = 0.2
_BLANK_SHARE = 0.8
_WINDOW_CHARS = 1024
_SHINGLE_CHARS = 8
_DISTINCT_SHARE = 0.12
_JOINERS = frozenset("\u200d\ufe0f\ufe0e")
_VARIATION = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
_INVISIBLE_KINDS = frozenset(("Cf", "Cc", "Cn", "Co", "Zl", "Zp"))
# Letters without a visible form: Hangul fillers, the blank Braille pattern, the combining grapheme joiner.
_DRAWN_AS_NOTHING = frozenset("\u115f\u1160\u3164\uffa0\u2800\u034f\u17b4\u17b5")


def padding_flags(text: str) -> tuple[Flag, ...]:
    """Return what is wrong with a text; nearly always nothing for honest ones. Takes a millisecond for 10 kB."""
    if len(text) < CHARS_MIN:
        return ()
    flags: list[Flag] = []
    if _invisible_share(text) > _INVISIBLE_SHARE:
        flags.append("invisible")
    if sum(map(str.isspace, text)) > _BLANK_SHARE * len(text):
        flags.append("blank")
    if _is_repeated(text):
        flags.append("repeated")
    return tuple(flags)


def _invisible_share(text: str) -> float:
    """Return the invisible share in bytes of UTF-8, which are closer to tokens than characters are."""
    unseen = sum(len(each.encode("utf-8", "replace")) for each in _unseen(text))
    return unseen / len(text.encode("utf-8", "replace"))


def _unseen(text: str) -> Iterator[str]:
    before = ""
    for each in text:
        # A joiner may follow a picture or letter once.
        is_joined = each in _JOINERS and before not in _JOINERS and category(before or " ") in ("So", "Sk", "Mn")
        if not is_joined and _is_invisible(each):
            yield each
        before = each


def _is_invisible(each: str) -> bool:
    if each in "\n\r\t ":
        return False
    return each in _VARIATION or each in _DRAWN_AS_NOTHING or category(each) in _INVISIBLE_KINDS


def _is_repeated(text: str) -> bool:
    """Return whether at least half of the text, or all of its last two windows, is repetition."""
    starts = range(0, len(text) - _WINDOW_CHARS + 1, _WINDOW_CHARS)
    windows = [text[start : start + _WINDOW_CHARS] for start in starts]
    if len(windows) < 2:
        return False
    same = [_distinct_share(window) < _DISTINCT_SHARE for window in windows]
    return sum(same) * 2 >= len(same) or all(same[-2:])


def _distinct_share(window: str) -> float:
    shingles = [window[n : n + _SHINGLE_CHARS] for n in range(len(window) - _SHINGLE_CHARS + 1)]
    return len(set(shingles)) / len(shingles)
