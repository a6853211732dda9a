"""A model's chat template, which puts messages and tools into the model's format.

It is foreign code and runs in a process of its own.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from cluster.errors import ModelInvalid, RequestInvalid
from cluster.generation import ChatPrompt
from cluster.models.chat_format import ChatFormat, read_format
from cluster.models.folding import folds
from cluster.models.template_process import LIMITS, TemplateProcess, TemplateStopped

# Mistral's templates refuse call ids of any other length.
_SHORT_ID = 9
# The longest known templates have some 30,000.
_SOURCE_CHARS_MAX = 2**20

_Messages = list[dict[str, Any]]


class ChatTemplate:
    """A compiled chat template. `special` are tokens that templates name, like bos_token.

    Models may have a separate template for tools.
    """

    def __init__(self, source: str, special: dict[str, str], tools_source: str | None = None) -> None:
        """Open the templates. Raise ModelInvalid if one cannot be read, or ClusterUnavailable."""
        self._special = special
        self._template, takes_tools = _opened(source)
        self._tools_template = self._template
        if tools_source:
            self._tools_template, takes_tools = _opened(tools_source)
        self.format: ChatFormat = read_format(tools_source or source, takes_tools=takes_tools)

    def render(self, prompt: ChatPrompt) -> str:
        """Return the conversation in the model's own format, ready for the assistant's turn.

        The template gets folded messages only if it refuses the original ones.

        Raise RequestInvalid, ClusterBusy or ClusterUnavailable.
        """
        if prompt.tools and self.format.tools is None:
            raise RequestInvalid("this model's chat template has no place for tools", "tools")
        refused: RequestInvalid | None = None
        until_s = time.monotonic() + LIMITS.cpu_s
        conversations = chain([prompt.messages], folds(prompt.messages))
        for messages in chain.from_iterable(map(self._shapes, conversations)):
            try:
                return self._render(messages, prompt)
            except TemplateStopped as error:
                message = f"the model's chat template was stopped: {error}"
                raise RequestInvalid(message, "messages") from None
            except RequestInvalid as error:
                refused = refused or error
                if time.monotonic() > until_s:
                    break
        assert refused
        raise refused

    def _shapes(self, messages: _Messages) -> Iterator[_Messages]:
        """Yield the messages in the shapes that templates may want.

        Call arguments are objects, or the JSON text. Content beside calls is missing, or empty.
        """
        if self.format.tools in ("mistral", "mistral_named"):
            messages = [_with_short_ids(message) for message in messages]
        with_objects = [_with_objects(message) for message in messages]
        yield with_objects
        if any(message.get("tool_calls") for message in messages):
            yield [_with_content(message) for message in with_objects]
            yield messages
            yield [_with_content(message) for message in messages]

    def _render(self, messages: _Messages, prompt: ChatPrompt) -> str:
        template = self._tools_template if prompt.tools else self._template
        variables = {
            "messages": messages,
            "tools": prompt.tools or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            reply = template.render(self._special | prompt.options | variables)
        except RecursionError:
            raise RequestInvalid("these messages are nested too deeply", "messages") from None
        if "refused" in reply:
            message = f"the model's chat template refuses these messages: {reply['refused']}"
            raise RequestInvalid(message, "messages")
        if "text" not in reply:
            message = f"the model's chat template cannot render these messages: {reply['failed']}"
            raise RequestInvalid(message, "messages")
        text: str = reply["text"]
        return text


def read_folder_template(folder: Path) -> ChatTemplate | None:
    """Return the chat template in a model's folder, or None. Raise ModelInvalid if it cannot be read."""
    settings = read_json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source = file.read_text() if file.is_file() else settings.get("chat_template")
    tools_source = None
    if isinstance(source, list):  # There are several named templates; "default" is the one for plain chat.
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source, tools_source = named.get("default"), named.get("tool_use")
    return ChatTemplate(source, special_tokens(settings), tools_source) if source else None


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; empty without a file. Raise ModelInvalid if it is not JSON."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelInvalid(f"{path}: {error}") from None
    return content if isinstance(content, dict) else {}


def special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """Return bos_token and similar tokens, which files hold as a string or as an object around one."""
    tokens = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _opened(source: str) -> tuple[TemplateProcess, bool]:
    """Return the opened template, and whether it reads tools."""
    if len(source) > _SOURCE_CHARS_MAX:
        raise ModelInvalid(f"chat template cannot be read: it is longer than {_SOURCE_CHARS_MAX} characters")
    template = TemplateProcess(source)
    try:
        reply = template.read()
    except TemplateStopped as error:
        raise ModelInvalid(f"chat template cannot be read: {error}") from None
    if "takes_tools" not in reply:
        raise ModelInvalid(f"chat template cannot be read: {reply.get('refused') or reply.get('failed')}")
    return template, bool(reply["takes_tools"])


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_object(call) for call in calls]} if calls else message


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message.get("content") or ""}


def _with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    changed = dict(message)
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": _short(str(call.get("id", "")))} for call in calls]
    if "tool_call_id" in message:
        changed["tool_call_id"] = _short(str(message["tool_call_id"]))
    return changed


def _short(call_id: str) -> str:
    if len(call_id) == _SHORT_ID and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).hexdigest()[:_SHORT_ID]
