"""The constraints of a request on the cluster's answer: tools to call, allowed or required, and text schema."""

import re
from dataclasses import dataclass
from typing import Any

from cluster.errors import RequestInvalid
from cluster.generation import CallSchema, Constraint
from gateway.dialects.openai import ChatRequest

# Models write the names into text of their own formats.
_NAME = re.compile(r"[\w.-]{1,128}")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model may see, in the API's format, and how it may use them."""

    shown: tuple[dict[str, Any], ...] = ()
    calls_max: int | None = None
    must_call: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.shown)


def read_tools(request: ChatRequest) -> Tools:
    """Raises RequestInvalid, naming the field."""
    if request.functions:
        raise _refusal("functions", "are not supported here; send them as tools")
    if request.function_call is not None:
        raise _refusal("function_call", "is not supported here; send tools and tool_choice instead")
    choice = request.tool_choice
    shown = tuple(_checked(tool, f"tools[{at}]") for at, tool in enumerate(request.tools or ()))
    calls_max = 1 if request.parallel_tool_calls is False else None
    if choice == "none":
        return Tools()
    if choice in (None, "auto"):
        return Tools(shown, calls_max)
    if not shown:
        raise _refusal("tool_choice", "only goes with tools")
    if choice == "required":
        return Tools(shown, calls_max, must_call=True)
    if isinstance(choice, dict):
        return _chosen(choice, shown, calls_max)
    raise _refusal("tool_choice", "must be none, auto, required or an object that names a function")


def constraint_of(request: ChatRequest, tools: Tools) -> Constraint | None:
    """Return the constraint on the answer, or None. Raises RequestInvalid, which names the field."""
    calls = tuple(_schema(tool["function"]) for tool in tools.shown)
    allows_parallel = tools.calls_max is None
    if tools.must_call:
        return Constraint(calls=calls, allows_parallel=allows_parallel)
    response_format = request.response_format or {}
    match response_format.get("type"):
        case None | "text":
            return None
        case "json_object":
            return Constraint(schema=_ANY_OBJECT, calls=calls, allows_parallel=allows_parallel)
        case "json_schema":
            described = response_format["json_schema"]
            schema, strict = described.get("schema", _ANY_OBJECT), described.get("strict") is True
            return Constraint(schema=schema, is_strict=strict, calls=calls, allows_parallel=allows_parallel)
        case kind:
            raise _refusal(
                "response_format.type", f"{str(kind)[:40]!r} is none of text, json_object and json_schema"
            )


def _chosen(choice: dict[str, Any], shown: tuple[dict[str, Any], ...], calls_max: int | None) -> Tools:
    """Return the tools that the request allows; the model sees no others."""
    if choice.get("type", "function") == "function":
        return Tools(_named(choice, shown), 1, must_call=True)
    allowed = choice.get("allowed_tools")
    if choice.get("type") != "allowed_tools" or not isinstance(allowed, dict):
        raise _refusal("tool_choice", "must be none, auto, required or an object that names a function")
    chosen = tuple(tool for one in allowed.get("tools") or () for tool in _named(one, shown))
    if not chosen:
        raise _refusal("tool_choice.allowed_tools.tools", "names no tool")
    return Tools(chosen, calls_max, must_call=allowed.get("mode") == "required")


def _named(choice: Any, shown: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    found = tuple(tool for tool in shown if tool["function"]["name"] == name)
    if not found:
        raise _refusal("tool_choice", f"names {str(name)[:128]!r}, which is not among the tools")
    return found[:1]


def _checked(tool: dict[str, Any], field: str) -> dict[str, Any]:
    """Return a function from which a grammar can be made."""
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise _refusal(field, "must be a function")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _refusal(
            f"{field}.function.name", "must be letters, digits, dots, dashes and underscores, 128 at most"
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise _refusal(f"{field}.function.parameters", "must be a JSON schema")
    return {"type": "function", **tool}


def _schema(function: dict[str, Any]) -> CallSchema:
    """Return the arguments' schema, which always requires an object."""
    parameters = _ANY_OBJECT | (function.get("parameters") or {})
    return CallSchema(function["name"], parameters, function.get("strict") is True)


def _refusal(field: str, problem: str) -> RequestInvalid:
    return RequestInvalid(f"{field}: {problem}", field)
