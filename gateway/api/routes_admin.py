"""/admin/route: simulate where a request would go now and why, and show the accuracy of predictions."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import ConfigDict, Field

from gateway.api.authority import Authority, Operator
from gateway.api.fields import Body, Text
from gateway.dialects.openai import Kind, read_request
from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from runtime.errors import NotFound, RequestInvalid

router = APIRouter(prefix="/admin/route")

# The field that identifies each request kind.
_TOLD_BY: dict[str, Kind] = {"messages": "chat", "prompt": "completion", "input": "embedding", "query": "rerank"}
_REQUEST_ID = "explain"


class RouteQuestion(Body):
    """An OpenAI request as it would be sent, and by its id or prefix the key that would send it.

    Without a key it is the asking admin's, and for the machine's own command line any new key.
    """

    model_config = ConfigDict(extra="forbid")
    request: dict[str, Any] = Field(min_length=1)
    key: Text | None = None


@router.post("/explain")
async def explain_route(authority: Operator, question: RouteQuestion) -> dict[str, Any]:
    """Simulate routing: candidates with every term of the formula, best first, and what each rule ruled out."""
    caller = await _caller(authority, question.key)
    call = _call(question.request, caller)
    decision = authority.services.router.explain(caller, call)
    return {"model": call.request.model, "key": caller.key_prefix, **decision.as_data()}


@router.get("/accuracy")
async def show_accuracy(authority: Operator) -> dict[str, dict[str, float]]:
    """Show the median error of predicted seconds by backend, absolute and relative to the measured time."""
    return authority.services.router.accuracy()


def _call(request: dict[str, Any], caller: Caller) -> Call:
    """Raises RequestInvalid, naming the field."""
    kind = next((kind for field, kind in _TOLD_BY.items() if field in request), None)
    if kind is None:
        text = f"request: one of {', '.join(_TOLD_BY)} is required to identify the kind, and all are missing"
        raise RequestInvalid(text, param="request", code="missing_required_parameter")
    raw = msgspec.json.encode(request)
    return Call(_REQUEST_ID, kind, read_request(kind, raw), raw, caller.user_id)


async def _caller(authority: Authority, key: str | None) -> Caller:
    services = authority.services
    if key is not None:
        row = await asyncio.to_thread(services.keys.row, key)
        found = await asyncio.to_thread(services.keys.find_by_id, row.key_id)
        if found is None:
            raise NotFound(f"the key {key} is no longer active")
        return found
    if authority.caller is not None:
        return authority.caller
    lanes = frozenset(services.settings.policy.lanes)
    return Caller("", "any new key", "", "", lanes)
