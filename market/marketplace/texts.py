"""Encode what a side of a dispute says was delivered."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from accounting.metering.delivered import Called, Delivered
from market.errors import StatementInvalid
from market.protocol.counting.answer import CALLS_MAX, CHOICES_MAX

CHARS_MAX = 2**20
"""Longest text of one side, as JSON."""

_Text = Annotated[str, Meta(max_length=CHARS_MAX)]


class ChoiceText(Struct, frozen=True, forbid_unknown_fields=True):
    """One choice of an answer. A call is its function's name and arguments."""

    content: _Text = ""
    reasoning: _Text = ""
    calls: Annotated[tuple[tuple[_Text, _Text], ...], Meta(max_length=CALLS_MAX)] = ()


Texts = Mapping[int, ChoiceText]
"""By the number of the choice."""


def pack_texts(texts: Texts) -> str:
    """Encode texts for storage. Raises StatementInvalid if they are too large."""
    packed = msgspec.json.encode(texts).decode()
    if len(texts) > CHOICES_MAX or len(packed) > CHARS_MAX:
        raise StatementInvalid(f"a text may have at most {CHOICES_MAX} choices and {CHARS_MAX} characters of JSON")
    return packed


def read_texts(packed: str) -> dict[int, Delivered]:
    """Return stored texts, for counting and hashing."""
    texts = msgspec.json.decode(packed, type=dict[int, ChoiceText])
    return {
        n: Delivered(text.content, text.reasoning, tuple(Called(*call) for call in text.calls))
        for n, text in texts.items()
    }
