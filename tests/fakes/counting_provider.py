"""A fake OpenAI that counts what it answers and how much of that at once, and that can hold every answer back."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from tests.fakes.provider_server import ProviderServer, Received, running

KEY = "sk-fake-counting-77ab"
PROMPT_TOKENS = 4
COMPLETION_TOKENS = 6
TOKENS = PROMPT_TOKENS + COMPLETION_TOKENS
_HELD_S_MAX = 90.0


class CountingProvider:
    """Every answer is of PROMPT_TOKENS and COMPLETION_TOKENS; it may be asked and told from any thread."""

    def __init__(self) -> None:
        self.server = ProviderServer({"/v1/chat/completions": self._answer}, models=("free",))
        self.at_once = 0
        self.at_once_most = 0
        self._open = threading.Event()
        self._open.set()

    @property
    def base_url(self) -> str:
        return f"{self.server.origin}/v1"

    def hold(self) -> None:
        """No answer leaves until `release`; `at_once_most` is reset."""
        self.at_once_most = self.at_once
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def _answer(self, request: web.Request, received: Received) -> web.StreamResponse:
        self.at_once += 1
        self.at_once_most = max(self.at_once_most, self.at_once)
        try:
            await self._until_open()
        finally:
            self.at_once -= 1
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1_770_000_000,
                "model": received.body["model"],
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": "The mill turns all night."},
                    }
                ],
                "usage": {
                    "prompt_tokens": PROMPT_TOKENS,
                    "completion_tokens": COMPLETION_TOKENS,
                    "total_tokens": TOKENS,
                },
            }
        )

    async def _until_open(self) -> None:
        deadline_s = time.monotonic() + _HELD_S_MAX
        while not self._open.is_set() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)


@contextmanager
def counting_provider() -> Iterator[CountingProvider]:
    provider = CountingProvider()
    with running(provider.server):
        yield provider
