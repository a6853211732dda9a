"""POST /v1/messages/count_tokens of Anthropic's API."""

from fastapi import APIRouter, Request

from gateway.api.authority import KeyCaller
from gateway.api.dialect_route import route_class
from gateway.api.edge import read_body
from gateway.api.token_count import Counter
from gateway.app_state import Settings
from gateway.dialects.anthropic.errors import error_body
from gateway.dialects.anthropic.requests import read_count

router = APIRouter(prefix="/v1/messages", route_class=route_class(error_body))


@router.post("/count_tokens")
async def count_tokens(
    request: Request, caller: KeyCaller, settings: Settings, counter: Counter
) -> dict[str, int]:
    """Count the prompt tokens of a Messages request."""
    raw = await read_body(request.scope, request.receive, settings.server.body_bytes_max)
    question = read_count(raw)
    async with counter.counting(caller, question.request.model):
        return {"input_tokens": await counter.tokens(question)}
