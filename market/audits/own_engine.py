"""Our own gateway as a trusted engine: asked as a preemptible request, which only our own machines serve."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from market.audits.audit_client import Unanswered
from market.protocol.audits.logprobs import GreedyToken, greedy_tokens_of

_BUSY_TRIES = 30
_BUSY_S = 2.0
_ANSWER_S = 300.0
_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """An answer's text, and its tokens if the engine tells how sure it was of them."""

    text: str
    tokens: tuple[GreedyToken, ...] = ()


Engine = Callable[[Mapping[str, Any]], Awaitable[EngineAnswer]]
"""Answers a chat request. Raises Unanswered."""


class OwnEngine:
    """`needs_logprobs` rejects answers without log probabilities, `needs_end` those that were cut off."""

    def __init__(self, base_url: str, key: str, *, needs_logprobs: bool = True, needs_end: bool = False) -> None:
        headers = {"authorization": f"Bearer {key}"}
        # Ignore the environment's proxies: they cannot reach this machine's loopback.
        self._client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=_ANSWER_S, trust_env=False)
        self._needs_logprobs = needs_logprobs
        self._needs_end = needs_end

    async def close(self) -> None:
        await self._client.aclose()

    async def answer(self, request: Mapping[str, Any]) -> EngineAnswer:
        """Answer greedily, with each token's runner-up if the engine tells it. Raises Unanswered."""
        more = {"logprobs": True, "top_logprobs": 2} if self._needs_logprobs else {}
        reply = await self._reply({**request, **more})
        try:
            choice = reply.json()["choices"][0]
            text, tokens = choice["message"]["content"], greedy_tokens_of(choice)
        except (ValueError, LookupError, TypeError) as error:
            raise Unanswered(f"status {reply.status_code}") from error
        if not isinstance(text, str) or (self._needs_logprobs and not tokens):
            raise Unanswered("no text, or no log probabilities")
        if self._needs_end and choice.get("finish_reason") != "stop":
            raise Unanswered("the answer is longer than its limit")
        return EngineAnswer(text, tokens)

    async def _reply(self, request: Mapping[str, Any]) -> httpx.Response:
        """Retry while own work keeps preemptible requests out."""
        for _ in range(_BUSY_TRIES):
            try:
                reply = await self._client.post("/chat/completions", json=request)
            except httpx.HTTPError as error:
                raise Unanswered(type(error).__name__) from error
            if reply.status_code != _UNAVAILABLE:
                return reply
            await asyncio.sleep(_BUSY_S)
        raise Unanswered("own work leaves no room for preemptible requests")
