"""GET and DELETE /v1/responses/{id}, its input items, and the count of a prompt's tokens."""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.api.authority import KeyCaller
from gateway.api.edge import read_body
from gateway.api.token_count import Counter
from gateway.app_state import Responses, Settings
from gateway.dialects.responses.conversation import resolve
from gateway.dialects.responses.requests import read_responses
from gateway.dialects.stored_responses.store import owner_of
from runtime.errors import NotFound, RequestInvalid

router = APIRouter(prefix="/v1/responses")

Json = dict[str, Any]


@router.get("/{response_id}")
async def get_response(
    caller: KeyCaller, responses: Responses, response_id: str, stream: bool = False
) -> Response:
    """Show one of the caller's stored responses.

    Raises RequestInvalid for `stream`.
    """
    if stream:
        raise RequestInvalid("stream: a stored response cannot be streamed; leave it out", param="stream")
    stored = await responses.find(owner_of(caller), response_id)
    return Response(stored.answer, media_type="application/json")


@router.delete("/{response_id}")
async def delete_response(caller: KeyCaller, responses: Responses, response_id: str) -> Json:
    """Delete a stored response."""
    await responses.remove(owner_of(caller), response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/{response_id}/cancel")
async def cancel_response(caller: KeyCaller, responses: Responses, response_id: str) -> Json:
    """Always refused: there are no background responses, and a caller cancels by disconnecting.

    Raises RequestInvalid in every case.
    """
    await responses.find(owner_of(caller), response_id)
    raise RequestInvalid(
        "This response is already complete: background responses are not supported.", param="response_id"
    )


@router.get("/{response_id}/input_items")
async def list_input_items(
    caller: KeyCaller,
    responses: Responses,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=256)] = None,
) -> Json:
    """List the input items of a stored response, page by page.

    Raises NotFound if the response has no item `after`.
    """
    stored = await responses.find(owner_of(caller), response_id)
    items: list[Json] = [_as_resource(item) for item in json.loads(stored.input)]
    if order == "desc":
        items.reverse()
    if after is not None:
        places = [at for at, item in enumerate(items) if item["id"] == after]
        if not places:
            raise NotFound(f"after: this response has no item {after!r}.", param="after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else "", "last_id": page[-1]["id"] if page else ""}
    return {"object": "list", "data": page, "has_more": len(items) > limit, **ends}


@router.post("/input_tokens")
async def count_input_tokens(
    request: Request, caller: KeyCaller, settings: Settings, responses: Responses, counter: Counter
) -> Json:
    """Count the prompt tokens of a Responses request."""
    raw = await read_body(request.scope, request.receive, settings.server.body_bytes_max)
    responses_question = read_responses(raw)
    async with counter.counting(caller, responses_question.request.model):
        question = await resolve(responses, caller, responses_question)
        return {"object": "response.input_tokens", "input_tokens": await counter.tokens(question)}


def _as_resource(item: Json) -> Json:
    """Return an item for a list: with optional fields filled in, and a message's text as a part."""
    if item.get("type", "message") != "message":
        return {"status": "completed", **item}
    kind = "output_text" if item.get("role") == "assistant" else "input_text"
    content = item.get("content")
    if isinstance(content, str):
        more: Json = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
        content = [{"type": kind, "text": content, **more}]
    return {"status": "completed", **item, "type": "message", "content": content}
