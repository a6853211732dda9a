"""A backend that repeats what it is told, in its own time, and knows in what order it was asked."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.provider_server import Handler, ProviderServer, Received, running

MODEL = "mill"


@dataclass
class Mill:
    """`delay_s` is what each answer takes. Requests that begin with "wait" are held while `holds` is set.

    `refusals` counts down: so many requests get a 503 first.
    """

    asked: list[str] = field(default_factory=list)
    delay_s: float = 0.0
    holds: bool = False
    refusals: int = 0
    at_once: int = 0
    at_once_most: int = 0
    server: ProviderServer = field(init=False)

    @property
    def base_url(self) -> str:
        return f"{self.server.origin}/v1"

    async def chat(self, request: web.Request, received: Received) -> web.Response:
        text = str(received.body["messages"][-1]["content"])
        self.asked.append(text)
        self.at_once += 1
        self.at_once_most = max(self.at_once, self.at_once_most)
        try:
            return await self._answer(text)
        finally:
            self.at_once -= 1

    async def _answer(self, text: str) -> web.Response:
        await asyncio.sleep(self.delay_s)
        while self.holds and text.startswith("wait"):
            await asyncio.sleep(0.01)
        if self.refusals:
            self.refusals -= 1
            return web.json_response({"error": {"message": "full", "type": "server_error"}}, status=500)
        if text.startswith("wrong"):
            return web.json_response({"error": {"message": "no such thing", "type": "invalid"}}, status=400)
        message = {"role": "assistant", "content": f"You said {text}"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response(_head("chat.completion") | {"choices": [choice], "usage": _usage()})

    async def complete(self, request: web.Request, received: Received) -> web.Response:
        choice = {"index": 0, "text": "and so on", "finish_reason": "stop", "logprobs": None}
        return web.json_response(_head("text_completion") | {"choices": [choice], "usage": _usage()})

    async def embed(self, request: web.Request, received: Received) -> web.Response:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}]
        usage = {"prompt_tokens": 2, "total_tokens": 2}
        return web.json_response({"object": "list", "model": MODEL, "data": data, "usage": usage})


@contextmanager
def running_mill() -> Iterator[Mill]:
    mill = Mill()
    routes: dict[str, Handler] = {
        "/v1/chat/completions": mill.chat,
        "/v1/completions": mill.complete,
        "/v1/embeddings": mill.embed,
    }
    with running(ProviderServer(routes, models=(MODEL,))) as server:
        mill.server = server
        yield mill


def _head(kind: str) -> dict[str, Any]:
    return {"id": "mill-1", "object": kind, "created": 1_770_000_000, "model": MODEL}


def _usage() -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
