"""The cluster lane: it turns tokens of the cluster's pipeline into OpenAI answers."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from cluster.chat_model import READY_PATIENCE_S, ChatModel
from cluster.controller import Controller
from cluster.errors import ClusterBusy, ClusterUnavailable, RequestInvalid
from cluster.generation import Accepted, Done, GenerateRequest, GenerationEvent, TokenEvent
from gateway.dialects.openai import GENERATES, EmbeddingRequest
from gateway.errors import FeatureUnsupported, LaneBusy
from gateway.lanes.aliases import Aliases, names_with, offers_of
from gateway.lanes.base import Answer, Call, GeneratorBody, Meter, Offer, begun
from gateway.lanes.cluster.answers import AnswerWriter
from gateway.lanes.cluster.comments import may_have_comments, with_comments
from gateway.lanes.cluster.requests import echo_of, requests_of, tools_of
from gateway.lanes.cluster.resumption import had_of, resume_of, tells_tokens
from gateway.lanes.embeddings import STATES, embedding_offers, loading_s, open_embeddings
from gateway.lanes.features import HINTS, Feature
from gateway.settings import LaneName

_MERGE_EVENTS = 64

_Numbered = tuple[int, GenerationEvent]


class ClusterLane:
    """Offers the models that the controller deploys, each under its name."""

    name: LaneName = "cluster"

    def __init__(
        self,
        controller: Controller,
        slots: int,
        *,
        speculate: bool = True,
        patience_s: float | None = None,
        aliases: Callable[[], Aliases] = dict,
    ) -> None:
        """`patience_s` is how long a request waits for a complete pipeline; None means the controller's own limit.

        `aliases` returns the models that names currently route to.
        """
        self._controller = controller
        self._aliases = aliases
        self._slots = slots
        self._speculate = speculate
        self._patience_s = patience_s

    def models(self) -> list[str]:
        names = {model.model_name for model in self._controller.models}
        return names_with(self._aliases(), {name for name in names if name})

    def offers(self, model: str) -> list[Offer]:
        return offers_of(self._aliases(), model, self._own_offers)

    def _own_offers(self, model: str) -> list[Offer]:
        first = self._controller.embeddings
        offers = [
            offer
            for each in self._controller.embedders
            for offer in embedding_offers(each, model, "embeddings" if each is first else model)
        ]
        if (chat := self._controller.chat_of(model)) is None:
            return offers
        status, reason = chat.status
        state = STATES.get(status, "down")
        predicted = chat.predicted
        return [
            *offers,
            Offer(
                lane="cluster",
                backend="cluster" if chat is self._controller.chat else model,
                model=model,
                state=state,
                note=chat.unconstrained if status == "ready" else reason,
                features=_features(chat),
                kinds=GENERATES,
                context_tokens=chat.context_tokens,
                slots=self._slots,
                first_token_s=predicted.first_token_s if predicted else None,
                token_s=predicted.token_s if predicted else None,
                weights=_weights(chat),
                is_resident=status != "unloaded",
                load_s=loading_s(chat.manager),
            ),
        ]

    async def open(self, call: Call, offer: Offer, _wait_s: float = math.inf) -> Answer:
        """Return with the first text, or with all of it if the caller does not stream.

        A stream whose model is being loaded for long begins with comments; then its errors follow in the body.

        Raises LaneBusy if the cluster has no room or no model, RequestInvalid for a resumption that does not fit,
        and GenerationError.
        """
        if isinstance(call.request, EmbeddingRequest):
            named = [each for each in self._controller.embedders if each.model_name == offer.model_there]
            if not named:
                raise _removed(offer)
            return await open_embeddings(named[0], call, offer, self._patience_s)
        if (chat := self._controller.chat_of(offer.model_there)) is None:
            raise _removed(offer)
        meter = Meter(source="tokenizer")
        opening = self._open(chat, call, offer, meter)
        chunks = await (opening if chat.is_ready or not may_have_comments(call) else with_comments(opening))
        content_type = "text/event-stream" if call.request.is_stream else "application/json"
        return Answer(200, content_type, GeneratorBody(chunks), meter)

    async def _open(self, chat: ChatModel, call: Call, offer: Offer, meter: Meter) -> AsyncGenerator[bytes]:
        """Return a begun generator of the answer, with its first text. Raises as `open` does."""
        if chat.model is None:
            await self._wait_for_model(chat, call)
        body = self._body(chat, call, offer, meter)
        try:
            first = await anext(body)
        except (ClusterBusy, ClusterUnavailable) as error:
            raise LaneBusy(error.message, code=error.code) from error
        except RequestInvalid as error:
            if error.param != "resume":
                raise
            raise RequestInvalid(f"millrace.resume: {error.message}", "millrace.resume") from None
        return await begun(_resume(first, body))

    async def _wait_for_model(self, chat: ChatModel, call: Call) -> None:
        """Wait until the model's features and format are known. Raises LaneBusy, FeatureUnsupported."""
        try:
            await chat.wait_ready(READY_PATIENCE_S if self._patience_s is None else self._patience_s)
        except ClusterUnavailable as error:
            raise LaneBusy(error.message, code=error.code) from error
        if missing := call.features.keys() - _features(chat):
            text = f"'{call.request.model}' does not support {', '.join(sorted(missing))}"
            raise FeatureUnsupported(text, param=call.features[min(missing)])

    async def _body(self, chat: ChatModel, call: Call, offer: Offer, meter: Meter) -> AsyncGenerator[bytes]:
        form, tools, weights = chat.chat_format, tools_of(call), _weights(chat)
        had = had_of(call, weights, offer.context_tokens)
        requests = requests_of(call, tools, form, speculate=self._speculate, resume=resume_of(had))
        echoes = [echo_of(call.generation, request.prompt) for request in requests]
        tells = tells_tokens(call, weights)
        writer = AnswerWriter(call, offer.model_there, echoes, form, tools, had=had, tells_tokens=tells)
        async with aclosing(self._events(chat, requests)) as events:
            tally = _Tally(meter)
            try:
                async for number, event in events:
                    tally.add(number, event)
                    if isinstance(event, Accepted):
                        writer.accept(is_thinking=event.is_thinking)
                    elif isinstance(event, TokenEvent):
                        choice = number * requests[0].n + event.choice
                        if chunk := writer.token(choice, event):
                            yield chunk
            finally:
                writer.tell_apart(meter)
        meter.is_complete = True
        meter.finish_reasons = writer.finish_reasons
        yield writer.end(meter)

    async def _events(self, chat: ChatModel, requests: list[GenerateRequest]) -> AsyncGenerator[_Numbered]:
        """Yield events of all prompts as they arrive, each with its prompt's number."""
        if len(requests) == 1:
            async with aclosing(chat.generate(requests[0], self._patience_s)) as events:
                async for event in events:
                    yield 0, event
            return
        merged: asyncio.Queue[_Numbered | Exception] = asyncio.Queue(_MERGE_EVENTS)
        tasks = [asyncio.create_task(self._pump(chat, at, request, merged)) for at, request in enumerate(requests)]
        try:
            open_prompts = len(tasks)
            while open_prompts:
                item = await merged.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                open_prompts -= isinstance(item[1], Done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self,
        chat: ChatModel,
        number: int,
        request: GenerateRequest,
        merged: "asyncio.Queue[_Numbered | Exception]",
    ) -> None:
        try:
            async with aclosing(chat.generate(request, self._patience_s)) as events:
                async for event in events:
                    await merged.put((number, event))
        except Exception as error:  # noqa: BLE001 - a task's edge: the merging task raises it again
            await merged.put(error)


def _removed(offer: Offer) -> LaneBusy:
    """Return the error of a request that has waited for a slot while its model was removed."""
    return LaneBusy(f"{offer.model_there} was removed", code=ClusterUnavailable.code)


def _weights(chat: ChatModel) -> str:
    """Return the weights' digest and precision; empty before they are known."""
    model, deployment = chat.model, chat.deployment
    return f"{model.manifest.digest}/{deployment.plan.precision}" if model and deployment else ""


def _features(chat: ChatModel) -> frozenset[Feature]:
    """Tools if the model's template supports them, schemas if the machines can enforce them.

    Before the model is loaded, both are assumed: `open` waits for the load.
    """
    found: set[Feature] = {"logprobs", *HINTS}
    if chat.chat_format.tools or chat.model is None:
        found.add("tools")
    if not chat.unconstrained:
        found.add("json")
    return frozenset(found)


class _Tally:
    """Keeps the meter current at every moment, because the caller may disconnect at any time."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._prompts: dict[int, int] = {}
        self._choices: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, number: int, event: GenerationEvent) -> None:
        """`number` is the prompt's; an accepted prompt may be accepted again after a loss."""
        if isinstance(event, Accepted):
            self._meter.prompt_tokens += event.prompt_tokens - self._prompts.get(number, 0)
            self._prompts[number] = event.prompt_tokens
        elif isinstance(event, TokenEvent):
            tokens, compute_ns = self._choices.get((number, event.choice), (0, 0))
            self._meter.completion_tokens += event.completion_tokens - tokens
            self._meter.compute_ns += event.compute_ns - compute_ns
            self._choices[number, event.choice] = event.completion_tokens, event.compute_ns
        else:
            self._meter.cached_tokens += event.cached_tokens


async def _resume(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield b""
        yield first
        async for chunk in rest:
            yield chunk
