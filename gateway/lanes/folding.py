"""Simplifies a chat's messages for a backend whose chat template refused them."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import structs

from cluster.models.folding import folds
from gateway.lanes.base import Call
from gateway.lanes.body_rewriter import with_fields


class _Chat(msgspec.Struct):
    messages: list[dict[str, Any]]


_chat = msgspec.json.Decoder(_Chat)


def folded_calls(call: Call) -> Iterator[Call]:
    """Yield the call with folded messages for ever stricter templates; nothing if folding changes nothing."""
    try:
        messages = _chat.decode(call.raw).messages
    except (msgspec.DecodeError, RecursionError):
        return  # Nested too deep to be serialized: the refusal remains.
    for folded in folds(messages):
        yield structs.replace(call, raw=with_fields(call, {"messages": folded}))
