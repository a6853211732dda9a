"""Translates a Responses request's tools to functions of a chat.

The client runs functions, groups of functions (type `namespace`) and custom tools (their input is free text). Each
becomes a function with its own name, and the answer translates a call back to the client's tool. Other types run
at OpenAI or need its client protocols: they are omitted, and the answer has a warning.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from gateway.dialects.responses.shapes import Tool
from runtime.errors import RequestInvalid

Json = dict[str, Any]

# The characters that OpenAI and most servers allow in a function's name.
_NAME_CHARS_MAX = 64
_DIGEST_CHARS = 8
_TYPE_CHARS_MAX = 40
_LEFT_OUT_SHOWN = 5
_INPUT = "input"


class ToolName(NamedTuple):
    """The client's name of a tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(slots=True)
class Toolbox:
    """`left_out` are the types of tools that cannot be called here."""

    functions: list[Json] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _names: dict[str, ToolName] = field(default_factory=dict)

    @property
    def warning(self) -> str:
        """Return a warning for the caller; empty if every tool can be called."""
        if not self.left_out:
            return ""
        kinds = list(dict.fromkeys(self.left_out))
        more = f" and {len(kinds) - _LEFT_OUT_SHOWN} more" if len(kinds) > _LEFT_OUT_SHOWN else ""
        return f"tools left out, as they cannot be called here: {', '.join(kinds[:_LEFT_OUT_SHOWN])}{more}"

    def known(self, function: str) -> ToolName:
        """Return the tool behind a function that the model calls."""
        return self._names.get(function, ToolName(function))

    def function_name(self, tool: ToolName) -> str:
        """Return the name of a tool's function, also for a tool of an earlier request of the conversation."""
        plain = _joined(tool)
        return plain if self._names.get(plain, tool) == tool else _distinct(plain, tool)

    def add(self, tool: ToolName, function: Json) -> None:
        name = self.function_name(tool)
        self._names[name] = tool
        self.functions.append({"type": "function", "function": {"name": name} | function})


def read_tools(tools: Iterable[tuple[str, Tool]]) -> Toolbox:
    """Each tool comes with its place in the request. Raises RequestInvalid, naming the field."""
    box = Toolbox()
    groups = []
    for place, tool in tools:
        if tool.type == "namespace":
            groups.append((place, tool))
        else:
            _take(box, tool, None, place)
    # A function outside of the groups keeps its name in any case.
    for place, group in groups:
        namespace = _required_name(group, place)
        for at, tool in enumerate(_described(group)):
            _take(box, tool, namespace, f"{place}.tools[{at}]")
    return box


def input_of(arguments: str) -> str:
    """Return a custom tool's input from the function arguments that the model wrote."""
    try:
        given = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = given.get(_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


def arguments_of(text: str) -> str:
    """Return a custom tool's input as its function's arguments."""
    return msgspec.json.encode({_INPUT: text}).decode()


def _take(box: Toolbox, tool: Tool, namespace: str | None, place: str) -> None:
    if tool.type == "function":
        box.add(ToolName(_required_name(tool, place), namespace), _function(tool))
    elif tool.type == "custom":
        box.add(ToolName(_required_name(tool, place), namespace, is_custom=True), _custom(tool))
    else:
        box.left_out.append(tool.type[:_TYPE_CHARS_MAX])


def _described(group: Tool) -> Iterator[Tool]:
    """Yield the tools of a group; the first one's description begins with the group's description."""
    for at, tool in enumerate(group.tools or ()):
        if at == 0 and group.description:
            words = "\n\n".join(filter(None, (group.description, tool.description)))
            yield msgspec.structs.replace(tool, description=words)
        else:
            yield tool


def _function(tool: Tool) -> Json:
    more = {"description": tool.description, "strict": tool.strict}
    parameters = tool.parameters or {"type": "object", "properties": {}}
    return {"parameters": parameters} | {name: value for name, value in more.items() if value is not None}


def _custom(tool: Tool) -> Json:
    """Return a function whose only argument is the text. A grammar is described to the model and not enforced."""
    words = [tool.description] if tool.description else []
    if tool.format and isinstance(definition := tool.format.get("definition"), str):
        words.append(f"`{_INPUT}` follows this grammar:\n{definition}")
    described = {"type": "string", "description": "The whole input of the tool, as text."}
    parameters = {"type": "object", "properties": {_INPUT: described}, "required": [_INPUT]}
    return {"parameters": parameters} | ({"description": "\n\n".join(words)} if words else {})


def _required_name(tool: Tool, place: str) -> str:
    if tool.name is None:
        raise RequestInvalid(f"{place}.name: missing", param=f"{place}.name", code="missing_required_parameter")
    return tool.name


def _joined(tool: ToolName) -> str:
    """Join group and tool name. A group's name may already end with the separator, as Codex writes MCP servers."""
    if tool.namespace is None:
        return tool.name
    joined = f"{tool.namespace.removesuffix('__')}__{tool.name}"
    return joined if len(joined) <= _NAME_CHARS_MAX else _distinct(joined, tool)


def _distinct(name: str, tool: ToolName) -> str:
    """Return a unique name within the length limit, with a digest of the tool's names."""
    own = f"{tool.namespace or ''}\0{tool.name}".encode()
    digest = hashlib.blake2b(own, digest_size=_DIGEST_CHARS // 2).hexdigest()
    return f"{name[: _NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"
