"""Simulates where a request would go now, and why."""

import asyncio
from typing import Any

import msgspec
from pydantic import Field

from gateway.admin.authority import Authority
from gateway.admin.fields import Body, Facts, Text
from gateway.dialects.openai import Kind, read_request
from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from gateway.routing.router import Router
from runtime.errors import NotFound, RequestInvalid

# The field that identifies each request kind.
_TOLD_BY: dict[str, Kind] = {"messages": "chat", "prompt": "completion", "input": "embedding", "query": "rerank"}
_REQUEST_ID = "explain"


class RouteQuestion(Body):
    """An OpenAI request as it would be sent, and by its id or prefix the key that would send it.

    Without a key it is the asking admin's, and for the machine's own command line any new key.
    """

    request: dict[str, Any] = Field(min_length=1)
    key: Text | None = None


async def explain_route(authority: Authority, router: Router, question: RouteQuestion) -> Facts:
    """Return candidates with every term of the formula, best first, and what each rule ruled out.

    Raises RequestInvalid, NotFound, Conflict.
    """
    caller = await _caller(authority, question.key)
    call = _call(question.request, caller)
    decision = router.explain(caller, call)
    return {"model": call.request.model, "key": caller.key_prefix, **decision.as_data()}


def _call(request: dict[str, Any], caller: Caller) -> Call:
    """Raises RequestInvalid, naming the field."""
    kind = next((kind for field, kind in _TOLD_BY.items() if field in request), None)
    if kind is None:
        text = f"request: one of {', '.join(_TOLD_BY)} is required to identify the kind, and all are missing"
        raise RequestInvalid(text, param="request", code="missing_required_parameter")
    raw = msgspec.json.encode(request)
    return Call(_REQUEST_ID, kind, read_request(kind, raw), raw, caller.user_id)


async def _caller(authority: Authority, key: str | None) -> Caller:
    directory = authority.directory
    if key is not None:
        row = await asyncio.to_thread(directory.keys.row, key)
        found = await asyncio.to_thread(directory.keys.find_by_id, row.key_id)
        if found is None:
            raise NotFound(f"the key {key} is no longer active")
        return found
    if authority.caller is not None:
        return authority.caller
    return Caller("", "any new key", "", "", frozenset(directory.lanes))
