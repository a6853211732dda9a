"""Limits the nesting of a request's objects, because very deep ones can be neither forwarded nor serialized."""

from collections.abc import Iterator
from typing import Any

from cluster.errors import RequestInvalid
from gateway.dialects.openai import ChatRequest

DEPTH_MAX = 100


def check_nesting(request: ChatRequest) -> None:
    """Raises RequestInvalid, naming the field, if the caller's own objects are deeper than DEPTH_MAX."""
    for field, value in _own_objects(request):
        if value and _is_deeper(value, DEPTH_MAX):
            raise RequestInvalid(f"{field}: nested deeper than {DEPTH_MAX} levels", field)


def _own_objects(request: ChatRequest) -> Iterator[tuple[str, Any]]:
    yield "response_format", request.response_format
    yield "tools", request.tools
    yield "chat_template_kwargs", request.chat_template_kwargs
    for at, message in enumerate(request.messages):
        yield f"messages[{at}].tool_calls", message.tool_calls


def _is_deeper(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels + 1):
        layer = [inner for outer in layer for inner in _inside(outer)]
        if not layer:
            return False
    return True


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
