"""What a side of a dispute says was delivered, as it is sent and kept."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from accounting.metering.delivered import Called, Delivered
from market.counting.answer import CALLS_MAX, CHOICES_MAX
from market.errors import StatementInvalid

CHARS_MAX = 2**20
"""Of one side's text, as JSON."""

_Text = Annotated[str, Meta(max_length=CHARS_MAX)]


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """One choice of an answer; a call is its function's name and arguments."""

    content: _Text = ""
    reasoning: _Text = ""
    calls: Annotated[tuple[tuple[_Text, _Text], ...], Meta(max_length=CALLS_MAX)] = ()


Texts = Mapping[int, Text]
"""By the number of the choice."""


def pack_texts(texts: Texts) -> str:
    """As it is kept. Raises StatementInvalid where it is more than is taken."""
    packed = msgspec.json.encode(texts).decode()
    if len(texts) > CHOICES_MAX or len(packed) > CHARS_MAX:
        raise StatementInvalid(f"a text has at most {CHOICES_MAX} choices and {CHARS_MAX} characters of JSON")
    return packed


def read_texts(packed: str) -> dict[int, Delivered]:
    """What was kept, to be counted and hashed."""
    texts = msgspec.json.decode(packed, type=dict[int, Text])
    return {
        n: Delivered(text.content, text.reasoning, tuple(Called(*call) for call in text.calls))
        for n, text in texts.items()
    }
