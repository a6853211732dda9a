"""Events of a resumable stream that state, before its chunks, the tokens that the chunks represent.

    data: {"choices":[],"millrace":{"choice":0,"token_ids":[15,7],"characters":9,"chunks":1}}
    data: {"id":"chatcmpl-...","choices":[{"index":0,"delta":{"content":" a wheel,"}}]}

A client with the chunks has these tokens, and can ask another gateway of the same weights to continue after them.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.dialects.openai import TokenId

_BEGINNING = b'data: {"choices":[],"millrace":{'
_COUNT_MAX = 2**31 - 1

_Count = Annotated[int, Meta(ge=0, le=_COUNT_MAX)]


class ResumeRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tokens of one choice and the number of characters they produced, covering the next `chunks` chunks.

    `text_offset` is the next token's offset in a completion's log-probabilities. `finished`: the choice ended.
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
    """Return the event's record; None if it has none."""
    if not event.startswith(_BEGINNING):
        return None
    try:
        return _decoder.decode(event[len(b"data:") :]).millrace
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
