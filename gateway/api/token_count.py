"""Counts prompt tokens: exactly if the cluster has the model's tokenizer, else with the ledger's estimate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

import orjson

from cluster.controller import Controller
from cluster.errors import GenerationError, ModelError
from gateway.admin.catalogue import find_entry
from gateway.app_state import held
from gateway.dialects.base import Question
from gateway.dialects.openai.prompt_estimate import estimate_prompt
from gateway.errors import ModelUnknown
from gateway.identity.caller import Caller
from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Lanes
from gateway.limits.admission import Admission
from gateway.limits.limits import Limits
from runtime.errors import Overloaded

_PATIENCE_S = 10.0
# Prompts that are tokenized in parallel only for a count.
_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class PromptCounter:
    """Counts prompts, a few at a time. One event loop owns it."""

    _lanes: Lanes
    _controller: Controller
    _aliases: Callable[[], Aliases]
    _admission: Admission
    _limits: Limits
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    @asynccontextmanager
    async def counting(self, caller: Caller, model: str) -> AsyncIterator[None]:
        """Reserve a slot for counting, and one request of the caller's limits even if counting fails.

        Raises ModelUnknown for a model that the caller may not use, RateLimited and Overloaded.
        """
        if find_entry(self._lanes, caller, model) is None:
            raise ModelUnknown(f"Model '{model}' not found. List models with GET /v1/models.", param="model")
        self._admission.enter()
        try:
            ticket = await self._limits.enter(caller, model, 0)
            try:
                await _take(self._slots)
                try:
                    yield
                finally:
                    self._slots.release()
            finally:
                ticket.leave(0, 0, is_served=True)
        finally:
            self._admission.leave()

    async def tokens(self, question: Question) -> int:
        """Return the number of tokens in a chat's prompt, including its tool descriptions."""
        controller, model = self._controller, question.request.model
        if chat := controller.chat_of(model, *self._aliases().get(model, ())):
            body = orjson.loads(question.raw)
            try:
                return await chat.count_tokens(body["messages"], body.get("tools") or [])
            except (GenerationError, ModelError):
                pass  # Pictures, or roles unknown to the template, have no exact count.
        return estimate_prompt(question.request)


Counter = Annotated[PromptCounter, held("prompt_counter")]


async def _take(turns: asyncio.Semaphore) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await turns.acquire()
    except TimeoutError:
        raise Overloaded("Too many prompts are being counted. Try again shortly.") from None
