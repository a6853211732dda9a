"""Counts and estimates of tokens, from upstreams' reports, or from texts if there is no report."""

import re
from typing import Any

import msgspec

from accounting.metering.counts import counts_of
from gateway.dialects.openai import ChatRequest, Request
from gateway.lanes.choice import said_of
from gateway.lanes.cloud.worker.schemas import SchemaTooLarge, expanded_bytes
from gateway.lanes.usage import Meter
from runtime.errors import RequestInvalid

_TOOLS_TOKENS = 1024
_TOOL_TOKENS = 64
_COST = re.compile("[0-9]{1,15}")


def read_usage(usage: Any, meter: Meter) -> bool:
    """Take the parsed usage of an answer or event; return False if it is not plausible."""
    counts = counts_of(usage)
    if counts is None:
        return False
    meter.count(counts)
    cost = usage.get("cost_nano")
    meter.cost_nano = None if cost is None else cost_of(cost)
    return True


def cost_of(text: Any) -> int | None:
    """Return the cost in nano-USD, which is accepted only from this gateway's own buyer."""
    return int(text) if isinstance(text, str) and _COST.fullmatch(text) else None


def tool_tokens_max(request: Request) -> int:
    """Return the maximum number of tokens that tools and schemas may add to the request's own bytes.

    Raises RequestInvalid.

    Providers explain to the model how to call tools. If they need schemas without references, these are expanded.
    """
    if not isinstance(request, ChatRequest):
        return 0
    tools = [*(request.tools or ()), *(request.functions or ())]
    tokens = _TOOLS_TOKENS + _TOOL_TOKENS * len(tools) if tools else 0
    for name in ("tools", "functions", "response_format"):
        if described := getattr(request, name):
            try:
                tokens += max(0, expanded_bytes(described) - len(_json(described)))
            except SchemaTooLarge:
                text = f"{name}: the schemas are too large once their references are written out, or too deep"
                raise RequestInvalid(text, param=name, code="schema_too_large") from None
    return tokens


def said_in(choice: Any) -> str:
    """Return everything generated in a choice of an answer or of a stream's event, including tool calls."""
    return said_of(choice).text if isinstance(choice, dict) else ""


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
