"""The response object, and the items of its output."""

import time
from typing import Any

import msgspec

from gateway.dialects.pieces import Said, Usage
from gateway.dialects.responses.shapes import ResponsesRequest, TextFormat, Tool
from gateway.dialects.responses.tools import ToolName
from runtime.http.api_error import ApiError

Json = dict[str, Any]

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_id(request_id: str) -> str:
    return f"resp_{request_id}"


def item_id(kind: str, request_id: str, place: int | str) -> str:
    """Item ids contain their response's id, so a reference is resolved without a list of all items."""
    return f"{kind}_{request_id}_{place}"


def response_of_item(item: str) -> str | None:
    """Return the id of the response that an item belongs to; None if this gateway did not make the item."""
    kind, _, rest = item.partition("_")
    request_id, _, place = rest.rpartition("_")
    return response_id(request_id) if kind in ("msg", "fc", "ctc", "rs") and request_id and place else None


def begun(request: ResponsesRequest, request_id: str, *, is_stored: bool) -> Json:
    """Return the response before any output."""
    chosen = (request.text and request.text.format) or TextFormat()
    return {
        "id": response_id(request_id),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": request.reasoning and request.reasoning.effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": is_stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": _format(chosen)},
        "tool_choice": request.tool_choice or "auto",
        "tools": [_tool(tool) for tool in request.tools or () if tool.type in ("function", "custom", "namespace")],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        # A prompt that does not fit is always refused.
        "truncation": "disabled",
        "metadata": request.metadata or {},
        **({} if request.user is None else {"user": request.user}),
    }


def ended(response: Json, content: Said, output: list[Json]) -> Json:
    """Return the response with all output."""
    reason = _INCOMPLETE.get(content.finish or "")
    done: Json = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    if reason is None:
        done = {"status": "completed", "completed_at": int(time.time())}
    return response | done | {"output": output, "usage": _usage(content.usage or Usage())}


def failed(response: Json, error: ApiError, output: list[Json]) -> Json:
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    return response | {"status": "failed", "error": {"code": code, "message": error.message}, "output": output}


def logprobs_of(entries: list[Json] | tuple[Json, ...]) -> list[Json]:
    return [_logprob(entry) | {"top_logprobs": [_logprob(top) for top in _tops(entry)]} for entry in entries]


def _tops(entry: Json) -> list[Json]:
    tops = entry.get("top_logprobs")
    return [top for top in tops if isinstance(top, dict)] if isinstance(tops, list) else []


def _logprob(entry: Json) -> Json:
    return {
        "token": entry.get("token") or "",
        "logprob": entry.get("logprob") or 0.0,
        "bytes": entry.get("bytes") or [],
    }


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def call_item(call_id: str, tool: ToolName) -> Json:
    """Return a call of a client's tool, before its arguments or input."""
    named: Json = {"call_id": call_id, "name": tool.name}
    if tool.namespace is not None:
        named["namespace"] = tool.namespace
    if tool.is_custom:
        return {"type": "custom_tool_call", **named, "input": ""}
    return {"type": "function_call", "status": "in_progress", **named, "arguments": ""}


def _tool(tool: Tool) -> Json:
    described = {name: value for name, value in msgspec.structs.asdict(tool).items() if value is not None}
    return (
        {"parameters": None, "strict": tool.strict is not False} if tool.type == "function" else {}
    ) | described


def _format(chosen: TextFormat) -> Json:
    if chosen.type != "json_schema":
        return {"type": chosen.type}
    format_ = {name: value for name, value in msgspec.structs.asdict(chosen).items() if value is not None}
    return {"name": "answer", "strict": False} | format_
