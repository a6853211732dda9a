"""A fake OpenAI: chat completions and completions, streamed or whole, with the faults of `behaviours.OPENAI`."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.fakes.behaviours import OPENAI, Behaviour, Refusal, behaviour_of
from tests.fakes.provider_server import ProviderServer, Received, running, serve_from_command_line

Json = dict[str, Any]

KEY = "sk-fake-openai-4f1c9b"
CACHED_TOKENS = 2
CREATED = 1_770_000_000
TOOL_ARGUMENTS = ('{"ci', 'ty": "Pa', 'ris"}')


@contextmanager
def openai_provider() -> Iterator[ProviderServer]:
    """A running fake; its base URL is `server.origin + "/v1"`, the key it takes is KEY."""
    with running(_server(port=0)) as server:
        yield server


def _server(port: int) -> ProviderServer:
    return ProviderServer({"/v1/chat/completions": _chat, "/v1/completions": _completion}, port)


async def _chat(request: web.Request, received: Received) -> web.StreamResponse:
    return await _answer(request, received, _ChatShape(received.body))


async def _completion(request: web.Request, received: Received) -> web.StreamResponse:
    return await _answer(request, received, _CompletionShape(received.body))


async def _answer(request: web.Request, received: Received, shape: "_ChatShape") -> web.StreamResponse:
    behaviour = behaviour_of(str(received.body["model"]), OPENAI)
    if request.headers.get("authorization") != f"Bearer {KEY}":
        behaviour = OPENAI["bad-key"]
    if behaviour.first_byte_delay_s:
        await asyncio.sleep(behaviour.first_byte_delay_s)
    if behaviour.refusal:
        return _refuse(behaviour.refusal)
    if received.body.get("stream"):
        return await _stream(request, received, shape, behaviour)
    if behaviour.garbage:
        return web.Response(text="<html>502 Bad Gateway</html>", content_type="text/html")
    return web.json_response(shape.whole(behaviour))


def _refuse(refusal: Refusal) -> web.Response:
    headers = {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s else {}
    body = {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.code}
    return web.json_response({"error": body}, status=refusal.status, headers=headers)


async def _stream(
    request: web.Request, received: Received, shape: "_ChatShape", behaviour: Behaviour
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for sent, chunk in enumerate(shape.pieces(behaviour)):
        if sent == behaviour.abort_after_chunks and request.transport:
            received.outcome = "broken"
            request.transport.abort()
            return response
        if sent == behaviour.end_after_chunks:
            received.outcome = "broken"
            return response
        if sent == behaviour.stall_after_chunks:
            await asyncio.Event().wait()
        if sent == behaviour.error_after_chunks:
            chunk = {"error": {"message": "The server had an error.", "type": "server_error", "code": None}}
        if behaviour.garbage:
            await response.write(b"data: {<html>\n\n")
        await response.write(b"data: %s\n\n" % json.dumps(chunk).encode())
        await asyncio.sleep(behaviour.chunk_delay_s)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


class _ChatShape:
    """One request's answer in the bodies of /v1/chat/completions."""

    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, body: Json) -> None:
        self.body = body

    def whole(self, behaviour: Behaviour) -> Json:
        message: Json = {"role": "assistant", "content": "".join(self._words(behaviour)), "refusal": None}
        if behaviour.calls_tool:
            message |= {"content": None, "tool_calls": [self._tool_call("".join(TOOL_ARGUMENTS))]}
        if behaviour.declines:
            message |= {"content": None, "refusal": message["content"]}
        finish = {"logprobs": self._logprobs("The "), "finish_reason": self._finish(behaviour)}
        choices = [{"index": index, "message": message, **finish} for index in range(self.body.get("n") or 1)]
        usage = {"usage": self._usage(behaviour)} if behaviour.sends_usage else {}
        return {**self._head(self.whole_object), "choices": choices, **usage}

    def pieces(self, behaviour: Behaviour) -> Iterator[Json]:
        opening = self._piece({"role": "assistant", "content": "", "refusal": None})
        yield opening | ({"usage": self._usage(behaviour, 1)} if behaviour.counts_ahead else {})
        if behaviour.calls_tool:
            yield self._piece({"tool_calls": [{"index": 0, **self._tool_call("")}]})
            for part in TOOL_ARGUMENTS:
                yield self._piece({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
        else:
            for word in self._words(behaviour):
                field = "refusal" if behaviour.declines else "content"
                yield self._piece({field: word}, logprobs=self._logprobs(word))
        yield self._piece({}, finish=self._finish(behaviour))
        if behaviour.sends_usage and (self.body.get("stream_options") or {}).get("include_usage"):
            yield {**self._head(self.piece_object), "choices": [], "usage": self._usage(behaviour)}

    def prompt_words(self) -> int:
        return sum(len(str(message.get("content")).split()) for message in self.body["messages"])

    def _piece(self, delta: Json, finish: str | None = None, logprobs: Any = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head(self.piece_object), "choices": [choice], "usage": None}

    def _head(self, kind: str) -> Json:
        head = {"id": "chatcmpl-fake1", "object": kind, "created": CREATED, "model": self.body["model"]}
        return {**head, "system_fingerprint": "fp_fake", "service_tier": "default"}

    def _words(self, behaviour: Behaviour) -> tuple[str, ...]:
        return behaviour.words[: self.body.get("max_tokens") or self.body.get("max_completion_tokens")]

    def _finish(self, behaviour: Behaviour) -> str:
        if behaviour.calls_tool:
            return "tool_calls"
        return "stop" if self._words(behaviour) == behaviour.words else "length"

    def _logprobs(self, word: str) -> Json | None:
        if not self.body.get("logprobs"):
            return None
        token = {"token": word, "logprob": -0.25, "bytes": list(word.encode())}
        return {"content": [{**token, "top_logprobs": [token]}], "refusal": None}

    def _tool_call(self, arguments: str) -> Json:
        name = self.body["tools"][0]["function"]["name"]
        return {"id": "call_fake1", "type": "function", "function": {"name": name, "arguments": arguments}}

    def _usage(self, behaviour: Behaviour, completion: int | None = None) -> Json:
        prompt = self.prompt_words()
        completion = len(self._words(behaviour)) if completion is None else completion
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
        }


class _CompletionShape(_ChatShape):
    """One request's answer in the bodies of /v1/completions."""

    whole_object = piece_object = "text_completion"

    def whole(self, behaviour: Behaviour) -> Json:
        text, finish = "".join(self._words(behaviour)), self._finish(behaviour)
        usage = {"usage": self._usage(behaviour)} if behaviour.sends_usage else {}
        return {**self._head(self.whole_object), "choices": [self._choice(text, finish)], **usage}

    def pieces(self, behaviour: Behaviour) -> Iterator[Json]:
        for word in self._words(behaviour):
            yield {**self._head(self.piece_object), "choices": [self._choice(word, None)]}
        yield {**self._head(self.piece_object), "choices": [self._choice("", self._finish(behaviour))]}
        if behaviour.sends_usage and (self.body.get("stream_options") or {}).get("include_usage"):
            yield {**self._head(self.piece_object), "choices": [], "usage": self._usage(behaviour)}

    def prompt_words(self) -> int:
        return len(str(self.body["prompt"]).split())

    def _choice(self, text: str, finish: str | None) -> Json:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


if __name__ == "__main__":
    serve_from_command_line(_server)
