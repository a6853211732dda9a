"""Counts prompt tokens: exactly if the cluster has the model's tokenizer, else with the ledger's estimate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson

from cluster.errors import GenerationError, ModelError
from gateway.admin.catalogue import find_entry
from gateway.dialects.base import Question
from gateway.dialects.openai.prompt_estimate import estimate_prompt
from gateway.errors import ModelUnknown
from gateway.identity.caller import Caller
from gateway.services import Services
from runtime.errors import Overloaded

_PATIENCE_S = 10.0


@asynccontextmanager
async def counting(services: Services, caller: Caller, model: str) -> AsyncIterator[None]:
    """Reserve a slot for counting, and one request of the caller's limits even if counting fails.

    Raises ModelUnknown for a model that the caller may not use, RateLimited and Overloaded.
    """
    if find_entry(services.lanes, caller, model) is None:
        raise ModelUnknown(f"Model '{model}' not found. List models with GET /v1/models.", param="model")
    services.admission.enter()
    try:
        ticket = await services.limits.enter(caller, model, 0)
        try:
            await _take(services.counting)
            try:
                yield
            finally:
                services.counting.release()
        finally:
            ticket.leave(0, 0, is_served=True)
    finally:
        services.admission.leave()


async def prompt_tokens(services: Services, question: Question) -> int:
    """Return the number of tokens in a chat's prompt, including its tool descriptions."""
    controller, model = services.controller, question.request.model
    if chat := controller.chat_of(model, *services.model_terms.aliases().get(model, ())):
        body = orjson.loads(question.raw)
        try:
            return await chat.count_tokens(body["messages"], body.get("tools") or [])
        except (GenerationError, ModelError):
            pass  # Pictures, or roles unknown to the template, have no exact count.
    return estimate_prompt(question.request)


async def _take(turns: asyncio.Semaphore) -> None:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await turns.acquire()
    except TimeoutError:
        raise Overloaded("Too many prompts are being counted. Try again shortly.") from None
