"""A fake Anthropic: the Messages API, streamed or whole, and the faults of `behaviours.ANTHROPIC`."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.fakes.behaviours import ANTHROPIC, Behaviour, Refusal, behaviour_of
from tests.fakes.provider_server import ProviderServer, Received, running, serve_from_command_line

Json = dict[str, Any]

KEY = "sk-ant-fake-77d0e2"
CACHED_TOKENS = 2
TOOL_ARGUMENTS = ('{"ci', 'ty": "Pa', 'ris"}')


@contextmanager
def anthropic_provider() -> Iterator[ProviderServer]:
    """A running fake; its base URL is `server.origin`, the key it takes is KEY."""
    with running(_server(port=0)) as server:
        yield server


def _server(port: int) -> ProviderServer:
    return ProviderServer({"/v1/messages": _messages}, port)


async def _messages(request: web.Request, received: Received) -> web.StreamResponse:
    behaviour = behaviour_of(str(received.body["model"]), ANTHROPIC)
    if request.headers.get("x-api-key") != KEY:
        behaviour = ANTHROPIC["bad-key"]
    elif "anthropic-version" not in request.headers or "max_tokens" not in received.body:
        behaviour = ANTHROPIC["bad-request"]
    if behaviour.first_byte_delay_s:
        await asyncio.sleep(behaviour.first_byte_delay_s)
    if behaviour.refusal:
        return _refuse(behaviour.refusal)
    if received.body.get("stream"):
        return await _stream(request, received, behaviour)
    if behaviour.garbage:
        return web.Response(text="<html>502 Bad Gateway</html>", content_type="text/html")
    return web.json_response(_whole(received.body, behaviour))


def _refuse(refusal: Refusal) -> web.Response:
    headers = {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s else {}
    error = {"type": refusal.kind, "message": refusal.message}
    body = {"type": "error", "error": error, "request_id": "req_fake1"}
    return web.json_response(body, status=refusal.status, headers=headers)


async def _stream(request: web.Request, received: Received, behaviour: Behaviour) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    deltas = 0
    for event in _events(received.body, behaviour):
        if event["type"] == "content_block_delta":
            if deltas == behaviour.abort_after_chunks and request.transport:
                received.outcome = "broken"
                request.transport.abort()
                return response
            if deltas == behaviour.end_after_chunks:
                received.outcome = "broken"
                return response
            if deltas == behaviour.stall_after_chunks:
                await asyncio.Event().wait()
            if deltas == behaviour.error_after_chunks:
                event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            if behaviour.garbage:
                await response.write(b"event: content_block_delta\ndata: {<html>\n\n")
            deltas += 1
            await asyncio.sleep(behaviour.chunk_delay_s)
        await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
    await response.write_eof()
    return response


def _events(body: Json, behaviour: Behaviour) -> Iterator[Json]:
    opening: Json = {"content": [], "stop_reason": None, "usage": _usage(body, behaviour) | {"output_tokens": 1}}
    yield {"type": "message_start", "message": {**_head(body), **opening}}
    block: Json = {"type": "text", "text": ""}
    parts = [{"type": "text_delta", "text": word} for word in _words(body, behaviour)]
    if behaviour.calls_tool:
        block = {"type": "tool_use", "id": "toolu_fake1", "name": body["tools"][0]["name"], "input": {}}
        parts = [{"type": "input_json_delta", "partial_json": part} for part in ("", *TOOL_ARGUMENTS)]
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "ping"}
    for part in parts:
        yield {"type": "content_block_delta", "index": 0, "delta": part}
    yield {"type": "content_block_stop", "index": 0}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": _stop_reason(body, behaviour), "stop_sequence": None},
        "usage": {"output_tokens": len(_words(body, behaviour))},
    }
    yield {"type": "message_stop"}


def _whole(body: Json, behaviour: Behaviour) -> Json:
    block: Json = {"type": "text", "text": "".join(_words(body, behaviour))}
    if behaviour.calls_tool:
        called = {"name": body["tools"][0]["name"], "input": json.loads("".join(TOOL_ARGUMENTS))}
        block = {"type": "tool_use", "id": "toolu_fake1", **called}
    stop = {"stop_reason": _stop_reason(body, behaviour), "stop_sequence": None}
    return {**_head(body), "content": [block], **stop, "usage": _usage(body, behaviour)}


def _head(body: Json) -> Json:
    return {"id": "msg_fake1", "type": "message", "role": "assistant", "model": body["model"]}


def _words(body: Json, behaviour: Behaviour) -> tuple[str, ...]:
    return behaviour.words[: body["max_tokens"]]


def _stop_reason(body: Json, behaviour: Behaviour) -> str:
    if behaviour.calls_tool:
        return "tool_use"
    return "end_turn" if _words(body, behaviour) == behaviour.words else "max_tokens"


def _usage(body: Json, behaviour: Behaviour) -> Json:
    """Anthropic counts cached tokens apart from input_tokens."""
    words = sum(len(_text(message["content"]).split()) for message in body["messages"])
    return {
        "input_tokens": words - CACHED_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": CACHED_TOKENS,
        "output_tokens": len(_words(body, behaviour)),
    }


def _text(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)


if __name__ == "__main__":
    serve_from_command_line(_server)
