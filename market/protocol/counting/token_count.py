"""Count tokens of prompts and answers as the market bills them: from text alone, by the voucher's tokenizer.

    prompt = tokens of every text in it, each by itself, + 4 per message, + 3
    answer = tokens of content, of visible reasoning, of each call's name and arguments, each by itself

No chat template is rendered: templates differ between engines, and what a seller adds to a prompt is its own
affair. Nothing depends on what a backend reports: a buyer that pays for reported counts pays for whatever is
reported (arXiv 2505.21627).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from accounting.errors import TextNotCounted
from accounting.metering.counts import tokens_of_bytes
from accounting.metering.delivered import Counts, Delivered, TokenCounter, count_all, readable
from market.errors import RequestNotCounted

MESSAGE_TOKENS = 4
"""The usual tokens that a chat template adds per message."""
PROMPT_TOKENS = 3
"""The usual tokens that it adds around all messages."""

_TEXT_PARTS = {"text": "text", "input_text": "text", "refusal": "refusal"}


class Counting:
    """Count with one tokenizer, or by four bytes of UTF-8 a token if it is None or fails on a text."""

    def __init__(self, counter: TokenCounter | None) -> None:
        self._counter = counter

    @property
    def tokenizer(self) -> str | None:
        """Return the SHA-256 of its tokenizer, as vouchers name it; None if it counts bytes."""
        return self._counter.sha256 if self._counter else None

    def remembering(self) -> "Counting":
        """Return a counter for one growing answer, which does not recount finished parts."""
        return Counting(self._counter.remembering() if self._counter else None)

    def prompt_tokens(self, request: Mapping[str, Any]) -> int:
        """Return the tokens of the prompt of an OpenAI chat or completion request.

        Raises:
            RequestNotCounted: it has a part without text, such as a picture; the error names it.
        """
        texts, frame_tokens = [*_prompt_texts(request)], PROMPT_TOKENS + _frame_tokens(request)
        return self._tokens(texts) + frame_tokens

    def text_tokens(self, text: str) -> int:
        """Return the tokens of a single text."""
        return self._tokens([text])

    def delivered(self, choices: Iterable[Delivered]) -> Counts:
        """Return the tokens of all choices of an answer. Takes about a microsecond per token."""
        answers = list(choices)
        try:
            return count_all(self._counter, answers)
        except TextNotCounted:
            return count_all(None, answers)

    def _tokens(self, texts: Iterable[str]) -> int:
        known = list(texts)
        if self._counter is not None:
            try:
                return self._counter.count(known)
            except TextNotCounted:
                # A text fails in the same tokenizer for every party, and every party then counts its bytes.
                pass
        return tokens_of_bytes(sum(len(readable(text).encode()) for text in known))


def _prompt_texts(request: Mapping[str, Any]) -> Iterator[str]:
    for number, message in enumerate(_list(request.get("messages"))):
        if not isinstance(message, dict):
            raise RequestNotCounted(f"messages[{number}]", "is not a message")
        yield from _message_texts(message, f"messages[{number}]")
    prompt = request.get("prompt")
    yield from (each for each in (prompt if isinstance(prompt, list) else [prompt]) if isinstance(each, str))
    if isinstance(suffix := request.get("suffix"), str):
        yield suffix
    # Every template shows names, descriptions and schemas to the model, in its own way.
    for tool in chain(_list(request.get("tools")), _list(request.get("functions"))):
        yield _json(tool)


def _json(tool: Any) -> str:
    try:
        return json.dumps(tool, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise RequestNotCounted("tools", "is nested too deeply to be counted") from None


def _message_texts(message: Mapping[str, Any], field: str) -> Iterator[str]:
    content = message.get("content")
    for number, part in enumerate(content if isinstance(content, list) else []):
        yield _part_text(part, f"{field}.content[{number}]")
    texts = (content, message.get("name"), message.get("refusal"), message.get("reasoning_content"))
    yield from (text for text in texts if isinstance(text, str))
    for call in _list(message.get("tool_calls")):
        yield from _function_texts(call.get("function") if isinstance(call, dict) else None)
    yield from _function_texts(message.get("function_call"))


def _part_text(part: Any, field: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(_TEXT_PARTS[kind]) if kind in _TEXT_PARTS else None
    if not isinstance(text, str):
        raise RequestNotCounted(field, f"is {kind or 'empty'}, but the market counts only text")
    return text


def _function_texts(function: Any) -> Iterator[str]:
    if isinstance(function, dict):
        texts = (function.get("name"), function.get("arguments"))
        yield from (text for text in texts if isinstance(text, str))


def _frame_tokens(request: Mapping[str, Any]) -> int:
    """Return the tokens around messages, and of prompts given as token ids."""
    prompt = request.get("prompt")
    ids = sum(1 if isinstance(each, int) else len(each) for each in _list(prompt) if isinstance(each, int | list))
    return ids + MESSAGE_TOKENS * len(_list(request.get("messages")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
