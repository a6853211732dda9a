"""What a resumable stream tells beside its chunks: the tokens that they stand for, before them, as an event.

    data: {"choices":[],"millrace":{"choice":0,"token_ids":[15,7],"characters":9,"chunks":1}}
    data: {"id":"chatcmpl-...","choices":[{"index":0,"delta":{"content":" a wheel,"}}]}

Whoever has the chunks has these tokens, and can have another gateway of the same weights go on behind them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.openai import TokenId

_BEGINNING = b'data: {"choices":[],"millrace":{'
_COUNT_MAX = 2**31 - 1

_Count = Annotated[int, Meta(ge=0, le=_COUNT_MAX)]


class ResumeRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of one choice: tokens, and characters of the text they gave, told by the next so many `chunks`.

    `text_offset` is where the next token of a completion's log-probabilities begins. With `finished` it has ended.
    """

    choice: _Count
    token_ids: list[TokenId]
    characters: _Count
    chunks: _Count
    text_offset: _Count = 0
    finished: bool = False


class _Event(Struct, frozen=True):
    millrace: ResumeRecord


_decoder = msgspec.json.Decoder(_Event)


def write_record(record: ResumeRecord) -> bytes:
    return b'data: {"choices":[],"millrace":%b}\n\n' % msgspec.json.encode(record)


def read_record(event: bytes) -> ResumeRecord | None:
    """None for an event that is none."""
    if not event.startswith(_BEGINNING):
        return None
    try:
        return _decoder.decode(event[len(b"data:") :]).millrace
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
