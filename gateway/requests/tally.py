"""Estimates how much of a stream's answer has been delivered, and cuts an event to the part that is paid."""

from typing import Any

import msgspec
import orjson

from accounting.metering.counts import tokens_of_bytes
from gateway.lanes.choice import said_in
from gateway.lanes.tee import data_of
from gateway.lanes.transcript import CHOICES_MAX

_INDICES_MAX = CHOICES_MAX
_DENSE = b"0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_PARTED = ("content", "reasoning_content", "reasoning", "refusal")


class Tally:
    """Estimates the tokens of all choices together, by their bytes or by their events.

    A letter is a quarter of a token. Digits and punctuation are half of one: tables, code and hexadecimal have
    shorter tokens than words. Most upstreams send one token per event. Some send single letters, so an event of
    one letter does not count. The charge is counted after the answer; this estimate only decides when to reserve
    more. If an upstream reports a higher usage during the stream, that counts.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.first: dict[str, Any] = {}
        """The first event; the last events repeat its id and model."""
        self.finished: set[int] = set()
        """The choices that have ended regularly."""
        self._quarters = 0
        self._events = 0

    def bytes_left(self, tokens_max: int) -> int:
        """The remaining room, in bytes of letters."""
        return 4 * tokens_max - self._quarters

    def take(self, event: bytes, tokens_max: int) -> bool:
        """Count an event; return False, uncounted, if it would exceed `tokens_max`."""
        quarters = texts = events = told_tokens = 0
        finished: list[int] = []
        for event_fields in map(_object, data_of(event)):
            self.first = self.first or event_fields
            told_tokens = max(told_tokens, _told(event_fields))
            for choice in _choices(event_fields):
                text = said_in(choice).encode(errors="replace")
                texts += len(text)
                quarters += 2 * len(text) - len(text.translate(None, _DENSE))
                events += not _is_letter(text)
                if choice.get("finish_reason"):
                    finished.append(_index(choice))
        tokens = max(tokens_of_bytes(self._quarters + quarters), self._events + events, told_tokens)
        if texts and tokens > tokens_max:
            return False
        self.tokens = max(self.tokens, tokens)
        self._quarters += quarters
        self._events += events
        if len(self.finished) < _INDICES_MAX:
            self.finished.update(finished)
        return True


def _is_letter(text: bytes) -> bool:
    """Return whether it is less than a token: nothing, or one letter of a word."""
    return not text or (len(text) == 1 and text not in _DENSE)


def _object(data: bytes) -> dict[str, Any]:
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _choices(event_fields: dict[str, Any]) -> list[dict[str, Any]]:
    choices = event_fields.get("choices")
    return [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _told(event_fields: dict[str, Any]) -> int:
    usage = event_fields.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else 0


def part_of(event: bytes, size_bytes: int) -> bytes | None:
    """Return the event with its text cut to `size_bytes` of UTF-8; None if it has no text that can be cut.

    Only the text of one choice is cut, in one field: half a tool call is of no use.
    """
    try:
        (data,) = data_of(event)
        fields = orjson.loads(data)
        (choice,) = fields["choices"]
        parted = _parted(choice, size_bytes)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if parted is None:
        return None
    head = {name: value for name, value in fields.items() if name != "usage"}
    return b"data: %b\n\n" % msgspec.json.encode(head | {"choices": [parted]})


def _parted(choice: dict[str, Any], size_bytes: int) -> dict[str, Any] | None:
    ended = {"logprobs": None, "finish_reason": None}
    if isinstance(text := choice.get("text"), str):
        part = _start(text, size_bytes)
        return choice | {"text": part} | ended if part else None
    delta = choice["delta"]
    texts = [name for name in _PARTED if delta.get(name)]
    if len(texts) != 1 or delta.get("tool_calls") or delta.get("function_call"):
        return None
    part = _start(delta[texts[0]], size_bytes)
    return choice | {"delta": delta | {texts[0]: part}} | ended if part else None


def _start(text: str, size_bytes: int) -> str:
    return text.encode(errors="replace")[: max(0, size_bytes)].decode(errors="ignore")
