"""The end of a stream whose payer's funds are used up: as at a token limit, with the reason."""

import time
from typing import Any

import msgspec

from gateway.dialects.openai import ChatRequest
from gateway.lanes.base import Call, Meter
from gateway.lanes.events import HEAD
from gateway.requests.holds import Ended
from gateway.requests.tally import Tally

TRAILER = b"x-millrace-ended"


def last_words(call: Call, choices_count: int, tally: Tally, meter: Meter, reason: Ended) -> bytes:
    """Return the last events in OpenAI's format.

    Each unfinished one of `choices_count` choices ends as `length`.
    """
    head = _head(call, tally)
    is_chat = isinstance(call.request, ChatRequest)
    empty: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    unfinished = [index for index in range(choices_count) if index not in tally.finished]
    choices = [{"index": index, **empty, "logprobs": None, "finish_reason": "length"} for index in unfinished]
    events = [head | {"choices": [choice]} for choice in choices] or [head | {"choices": []}]
    events[-1]["millrace"] = {"ended": reason}
    if call.generation.wants_usage:
        events.append(head | {"choices": [], "usage": meter.as_usage()})
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(event) for event in events) + b"data: [DONE]\n\n"


def _head(call: Call, tally: Tally) -> dict[str, Any]:
    head = {name: tally.first[name] for name in HEAD if name in tally.first}
    if head:
        return head
    kind = "chat.completion.chunk" if isinstance(call.request, ChatRequest) else "text_completion"
    return {"id": call.id, "object": kind, "created": int(time.time()), "model": call.request.model}
