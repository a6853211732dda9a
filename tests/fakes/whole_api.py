"""A fake backend with the whole of OpenAI's API, which does what a request asks for as a good model would.

It calls every tool that it is given, and both at once; tells what tools have found; fills schemas; counts the
pictures that it sees; speaks, listens and paints. Asked to BREAK_OFF, it hangs up in the middle of its answer, and
asked for NONSENSE, it answers with that.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.fakes.provider_server import Handler, ProviderServer, Received, running

Json = dict[str, Any]

MODEL = "whole"
BREAK_OFF = "Break off."
NONSENSE = "Nonsense, please."
TEXT = "The mill wheel turns all night."
FILLED = {"city": "Paris", "degrees": 21}
SPEECH = bytes(range(256)) * 40
PICTURE = "aGFsbG8="
_CREATED = 1_770_000_000


@contextmanager
def whole_api() -> Iterator[ProviderServer]:
    """A running fake; its base URL is `server.origin + "/v1"`."""
    routes: dict[str, Handler] = {
        "/v1/chat/completions": _chat,
        "/v1/completions": _completion,
        "/v1/embeddings": _embed,
        "/v1/rerank": _rerank,
        "/v1/moderations": _moderate,
        "/v1/images/generations": _paint,
        "/v1/images/edits": _paint,
        "/v1/audio/speech": _speak,
        "/v1/audio/transcriptions": _listen,
    }
    with running(ProviderServer(routes, models=(MODEL,))) as server:
        yield server


async def _chat(request: web.Request, received: Received) -> web.StreamResponse:
    question = received.body
    message = _message(question)
    finish = "tool_calls" if "tool_calls" in message else "stop"
    if question["messages"][-1]["content"] == BREAK_OFF:
        return await _break_off(request, [_choice(delta, None, question) for delta in _deltas(message)][:3])
    if question["messages"][-1]["content"] == NONSENSE:
        return web.json_response(_head("chat.completion") | {"choices": 5})
    if not question.get("stream"):
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": finish,
            "logprobs": _logprobs(question, message),
        }
        return web.json_response(_head("chat.completion") | {"choices": [choice], "usage": _usage()})
    deltas = [_choice(delta, None, question) for delta in _deltas(message)]
    return await _stream(request, [*deltas, _choice({}, finish, question)], question)


async def _completion(request: web.Request, received: Received) -> web.StreamResponse:
    question = received.body
    if not question.get("stream"):
        choice = {"index": 0, "text": TEXT, "finish_reason": "stop", "logprobs": None}
        return web.json_response(_head("text_completion") | {"choices": [choice], "usage": _usage()})
    words = [{"index": 0, "text": word, "finish_reason": None} for word in _words(TEXT)]
    return await _stream(request, [*words, {"index": 0, "text": "", "finish_reason": "stop"}], question)


def _message(question: Json) -> Json:
    last = question["messages"][-1]
    turn: Json = {"role": "assistant", "content": TEXT, "refusal": None}
    if last["role"] == "tool":
        found = [message["content"] for message in question["messages"] if message["role"] == "tool"]
        return turn | {"content": "It is " + " and ".join(found) + "."}
    if question.get("tools") and question.get("tool_choice") != "none":
        calls = [
            {"id": f"call_{at}", "type": "function", "function": {"name": _name(tool), "arguments": _FILLED}}
            for at, tool in enumerate(question["tools"])
        ]
        return turn | {"content": None, "tool_calls": calls}
    if (question.get("response_format") or {}).get("type") == "json_schema":
        return turn | {"content": _FILLED}
    if isinstance(last["content"], list):
        pictures = [part for part in last["content"] if part["type"] == "image_url"]
        return turn | {"content": f"I see {len(pictures)} pictures."}
    return turn


_FILLED = json.dumps(FILLED)


def _name(tool: Json) -> str:
    return str(tool["function"]["name"])


def _words(text: str) -> list[str]:
    return [word if at == 0 else " " + word for at, word in enumerate(text.split(" "))]


def _deltas(message: Json) -> Iterator[Json]:
    yield {"role": "assistant", "content": ""}
    for word in _words(message["content"] or ""):
        yield {"content": word}
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        yield {"tool_calls": [{"index": index, **call, "function": call["function"] | {"arguments": ""}}]}
        for part in (arguments[:7], arguments[7:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _choice(delta: Json, finish: str | None, question: Json) -> Json:
    return {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": _logprobs(question, delta)}


def _logprobs(question: Json, turn: Json) -> Json | None:
    if not question.get("logprobs") or not turn.get("content"):
        return None
    token = {"token": turn["content"], "logprob": -0.25, "bytes": list(turn["content"].encode())}
    return {"content": [token | {"top_logprobs": [token]}], "refusal": None}


async def _stream(request: web.Request, choices: list[Json], question: Json) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    chunks: list[Json] = [{"choices": [choice], "usage": None} for choice in choices]
    if (question.get("stream_options") or {}).get("include_usage"):
        chunks.append({"choices": [], "usage": _usage()})
    for chunk in chunks:
        await response.write(b"data: %s\n\n" % json.dumps(_head("chat.completion.chunk") | chunk).encode())
        await asyncio.sleep(0)
    await response.write(b"data: [DONE]\n\n")
    return response


async def _break_off(request: web.Request, choices: list[Json]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for choice in choices:
        await response.write(b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode())
    await asyncio.sleep(0.05)
    assert request.transport
    request.transport.abort()
    return response


def _head(kind: str) -> Json:
    return {"id": "chatcmpl-whole", "object": kind, "created": _CREATED, "model": MODEL}


def _usage() -> Json:
    return {
        "prompt_tokens": 12,
        "completion_tokens": 6,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


async def _embed(request: web.Request, received: Received) -> web.Response:
    given = received.body["input"]
    texts = [given] if isinstance(given, str) else given
    vectors = [{"object": "embedding", "index": at, "embedding": [0.5, float(at)]} for at in range(len(texts))]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    return web.json_response({"object": "list", "model": MODEL, "data": vectors, "usage": usage})


async def _rerank(request: web.Request, received: Received) -> web.Response:
    order = sorted(range(len(received.body["documents"])), key=lambda at: -at)
    results = [{"index": at, "relevance_score": 1 / (1 + place)} for place, at in enumerate(order)]
    return web.json_response({"model": MODEL, "results": results, "usage": {"total_tokens": 9}})


async def _moderate(request: web.Request, received: Received) -> web.Response:
    result: Json = {"flagged": False, "categories": {}, "category_scores": {}, "category_applied_input_types": {}}
    return web.json_response({"id": "modr-1", "model": MODEL, "results": [result]})


async def _paint(request: web.Request, received: Received) -> web.Response:
    return web.json_response({"created": _CREATED, "data": [{"b64_json": PICTURE}]})


async def _speak(request: web.Request, received: Received) -> web.Response:
    return web.Response(body=SPEECH, content_type="audio/mpeg")


async def _listen(request: web.Request, received: Received) -> web.Response:
    form = await request.post()
    sound = form["file"]
    assert isinstance(sound, web.FileField)
    received.body = {"model": form["model"], "file": sound.file.read().hex(), "name": sound.filename}
    return web.json_response({"text": TEXT})
