"""Split long chunks into parts, without I/O.

The seller decides how long a chunk is, and we bear the cost of text that the caller did not get.
"""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

PART_CHARS = 512


def parts_of(choices: list[Json]) -> Iterator[list[Json]]:
    """Yield a chunk's choices one by one, in pieces of at most `PART_CHARS` characters of text each.

    Log probabilities come with a choice's first piece, its finish reason with its last.
    """
    for choice in choices:
        pieces = list(_pieces(choice))
        for number, piece in enumerate(pieces):
            is_first, is_last = number == 0, number == len(pieces) - 1
            logprobs = choice["logprobs"] if is_first else None
            finish = choice["finish_reason"] if is_last else None
            yield [{"index": choice["index"], **piece, "logprobs": logprobs, "finish_reason": finish}]


def _pieces(choice: Json) -> Iterator[Json]:
    if "delta" not in choice:
        yield from ({"text": text} for text in _cut(choice["text"]))
        return
    deltas = [part for name, value in choice["delta"].items() for part in _deltas(name, value)]
    yield from ({"delta": delta} for delta in deltas or [{}])


def _deltas(name: str, value: Any) -> Iterator[Json]:
    """Yield a field of a delta as one or more deltas."""
    if name == "tool_calls":
        for call in value:
            named = call
            for function in _functions(call["function"]):
                yield {"tool_calls": [{**named, "function": function}]}
                named = {"index": call["index"]}
    elif name == "function_call":
        yield from ({name: function} for function in _functions(value))
    else:
        yield from ({name: text} for text in _cut(value))


def _functions(function: Json) -> Iterator[Json]:
    first, *others = _cut(function["arguments"])
    yield {**function, "arguments": first}
    yield from ({"arguments": text} for text in others)


def _cut(text: str) -> list[str]:
    return [text[at : at + PART_CHARS] for at in range(0, max(1, len(text)), PART_CHARS)]
