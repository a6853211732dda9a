"""A model's chat template, which puts messages and tools into the model's format.

It is foreign code and runs in a sandbox.
"""

import hashlib
import json
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from cluster.errors import ModelInvalid, RequestInvalid
from cluster.generation import ChatPrompt
from cluster.models.chat_format import ChatFormat, read_format
from cluster.models.folding import folds
from cluster.models.template_bounds import BoundedEnvironment, TemplateBeyondBounds

# Mistral's templates refuse call ids of any other length.
_SHORT_ID = 9

_Messages = list[dict[str, Any]]


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here they are ordinary text."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Stopped(RequestInvalid):
    """The template exceeded its limits."""


class ChatTemplate:
    """A compiled chat template. `special` are tokens that templates name, like bos_token.

    Models may have a separate template for tools.
    """

    def __init__(self, source: str, special: dict[str, str], tools_source: str | None = None) -> None:
        """Compile the templates. Raise ModelInvalid if one cannot be read."""
        self._environment = environment = _environment()
        self._special = special
        self._template, takes_tools = _compile(environment, source)
        self._tools_template = self._template
        if tools_source:
            self._tools_template, takes_tools = _compile(environment, tools_source)
        self.format: ChatFormat = read_format(tools_source or source, takes_tools=takes_tools)

    def render(self, prompt: ChatPrompt) -> str:
        """Return the conversation in the model's own format, ready for the assistant's turn.

        The template gets folded messages only if it refuses the original ones. Raise RequestInvalid.
        """
        if prompt.tools and self.format.tools is None:
            raise RequestInvalid("this model's chat template has no place for tools", "tools")
        refused: RequestInvalid | None = None
        conversations = chain([prompt.messages], folds(prompt.messages))
        for messages in chain.from_iterable(map(self._shapes, conversations)):
            try:
                return self._render(messages, prompt)
            except _Stopped:
                raise  # Another shape of the messages would cost as much again.
            except RequestInvalid as error:
                refused = refused or error
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
        try:
            return self._environment.joined(
                template.generate(
                    self._special
                    | prompt.options
                    | {
                        "messages": messages,
                        "tools": prompt.tools or None,
                        "documents": None,
                        "add_generation_prompt": True,
                    }
                )
            )
        except TemplateBeyondBounds as error:
            raise _Stopped(f"the model's chat template was stopped: {error}", "messages") from None
        except TemplateError as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise RequestInvalid(message, "messages") from None
        except Exception as error:  # noqa: BLE001 - a template is foreign code and may fail in any way
            message = f"the model's chat template cannot render these messages: {type(error).__name__}: {error}"
            raise RequestInvalid(message, "messages") from None


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


def _compile(environment: BoundedEnvironment, source: str) -> tuple[Template, bool]:
    """Return the compiled template, and whether it reads tools."""
    try:
        parsed = environment.parse(source)
        takes_tools = any(name.name == "tools" for name in parsed.find_all(nodes.Name))
        return environment.from_string(environment.bounded(parsed)), takes_tools
    except (TemplateError, RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
        raise ModelInvalid(f"chat template cannot be read: {error}") from None


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode without jinja's own escapes, which are meant for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


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


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
