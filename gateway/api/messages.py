"""POST /v1/messages/count_tokens of Anthropic's API."""

from fastapi import APIRouter, Request

from gateway.api.dialect_route import route_class
from gateway.api.edge import authenticate, read_body
from gateway.api.token_count import counting, prompt_tokens
from gateway.dialects.anthropic.errors import error_body
from gateway.dialects.anthropic.requests import read_count
from gateway.services import Services

router = APIRouter(prefix="/v1/messages", route_class=route_class(error_body))


@router.post("/count_tokens")
async def count_tokens(request: Request) -> dict[str, int]:
    """Count the prompt tokens of a Messages request."""
    services: Services = request.app.state.services
    caller = await authenticate(services.directory.gate, request.scope)
    raw = await read_body(request.scope, request.receive, services.settings.server.body_bytes_max)
    question = read_count(raw)
    async with counting(services, caller, question.request.model):
        return {"input_tokens": await prompt_tokens(services, question)}
