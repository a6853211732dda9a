"""Our own gateway as a trusted engine: asked as a preemptible request, which only our own machines serve."""

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any

import httpx

from market.audits.audit_client import AuditAnswer, Unanswered
from market.protocol.audits.logprobs import token_logprobs_of

_BUSY_TRIES = 30
_BUSY_S = 2.0
_ANSWER_S = 300.0
_UNAVAILABLE = 503


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

    async def answer(self, request: Mapping[str, Any]) -> AuditAnswer:
        """Answer greedily, with each token's runner-up if the engine tells it. Raises Unanswered."""
        more = {"logprobs": True, "top_logprobs": 2} if self._needs_logprobs else {}
        began_s = monotonic()
        reply = await self._reply({**request, **more})
        try:
            choice = reply.json()["choices"][0]
            text, logprobs = choice["message"]["content"], token_logprobs_of(choice)
        except (ValueError, LookupError, TypeError) as error:
            raise Unanswered(f"status {reply.status_code}") from error
        if not isinstance(text, str) or (self._needs_logprobs and not logprobs):
            raise Unanswered("no text, or no log probabilities")
        if self._needs_end and choice.get("finish_reason") != "stop":
            raise Unanswered("the answer is longer than its limit")
        return AuditAnswer(text, logprobs, monotonic() - began_s)

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
