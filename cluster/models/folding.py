"""Simpler shapes of conversations, for chat templates that refuse the original one.

Coding agents send system messages in the middle, several user messages in a row, and text in parts. Strict
templates raise an error on them: roles must alternate, or the system message must be the first. Pure.
"""

from collections.abc import Callable, Iterator
from typing import Any

Messages = list[dict[str, Any]]

# Some templates want an assistant's turn between a tool's result and the next user message. Several templates
# refuse an empty one.
_ACKNOWLEDGED = "OK."
_BREAK = "\n\n"


def folds(messages: Messages) -> Iterator[Messages]:
    """Yield the same conversation for increasingly strict templates, without repeated shapes."""
    before = messages
    shape = messages
    steps: tuple[Callable[[Messages], Messages], ...] = (_merge, _acknowledge_tools, _without_system)
    for step in steps:
        shape = step(shape)
        if shape != before:
            yield shape
        before = shape


def _merge(messages: Messages) -> Messages:
    """Return the messages with at most one system message, at the beginning, and no role twice in a row."""
    merged: Messages = []
    for message in map(_plain, messages):
        if message["role"] == "system" and any(earlier["role"] != "system" for earlier in merged):
            message = {"role": "user", "content": message["content"]}
        if merged and message["role"] == merged[-1]["role"] != "tool":
            merged[-1] = _joined(merged[-1], message)
        else:
            merged.append(message)
    return merged


def _acknowledge_tools(messages: Messages) -> Messages:
    """Insert an assistant's turn between a tool's result and the next user message."""
    shape: Messages = []
    for message in messages:
        if message["role"] == "user" and shape and shape[-1]["role"] == "tool":
            shape.append({"role": "assistant", "content": _ACKNOWLEDGED})
        shape.append(message)
    return shape


def _without_system(messages: Messages) -> Messages:
    """Put the text of the system message at the beginning of the first user message."""
    if not messages or messages[0]["role"] != "system":
        return messages
    first = {"role": "user", "content": messages[0]["content"]}
    return _merge([first, *messages[1:]])


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Replace "developer", OpenAI's newer word, by "system", and join parts of text into one string."""
    content = message.get("content")
    if message["role"] == "developer":
        message = {**message, "role": "system"}
    if isinstance(content, list) and all(_is_text(part) for part in content):
        message = {**message, "content": "\n".join(part["text"] for part in content)}
    return message


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return both messages as one. Other fields of the first message are kept."""
    joined = {**first, "content": _joined_content(first.get("content"), second.get("content"))}
    calls = [*(first.get("tool_calls") or ()), *(second.get("tool_calls") or ())]
    return joined | {"tool_calls": calls} if calls else joined


def _joined_content(first: Any, second: Any) -> Any:
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + _BREAK + second
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
