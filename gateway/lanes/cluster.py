"""The cluster lane: our own machines answer; the pipeline's tokens become OpenAI answers here."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cluster.controller import Controller
from cluster.errors import ClusterBusy, ClusterUnavailable, RequestInvalid
from cluster.generation import (
    Accepted,
    ChatPrompt,
    Done,
    GenerateRequest,
    GenerationEvent,
    Limits,
    Prompt,
    Sampling,
    TextPrompt,
    TokenEvent,
    TokenPrompt,
)
from gateway.errors import LaneFailed
from gateway.lanes.base import Answer, Call, Meter, Offer, begun
from gateway.lanes.cluster_answers import AnswerWriter
from gateway.lanes.embeddings import STATES, embedding_offers, open_embeddings
from gateway.lanes.features import HINTS
from gateway.openai import GENERATES, ChatRequest, EmbeddingRequest, GenerationRequest, Message
from gateway.settings import LaneName

_CHOICES_MAX = 128
_MERGE_EVENTS = 64

_Numbered = tuple[int, GenerationEvent]


class ClusterLane:
    """Offers the one model that the controller deploys, and the one that it embeds with."""

    name: LaneName = "cluster"

    def __init__(self, controller: Controller, slots: int, *, speculate: bool = True) -> None:
        self._controller = controller
        self._slots = slots
        self._speculate = speculate

    def models(self) -> list[str]:
        names = {self._controller.model_name, self._controller.embeddings.model_name}
        return sorted(name for name in names if name)

    def offers(self, model: str) -> list[Offer]:
        offers = embedding_offers(self._controller.embeddings, model)
        if self._controller.model_name != model:
            return offers
        status, reason = self._controller.status
        state = STATES.get(status, "down")
        return [
            *offers,
            Offer(
                lane="cluster",
                backend="cluster",
                model=model,
                state=state,
                note="" if state == "ready" else reason,
                features=HINTS,
                kinds=GENERATES,
                context_tokens=self._controller.context_tokens,
                slots=self._slots,
            ),
        ]

    async def open(self, call: Call, offer: Offer) -> Answer:
        """Returns with the first text, or all of it when the caller does not stream."""
        if isinstance(call.request, EmbeddingRequest):
            return await open_embeddings(self._controller.embeddings, call.id, call.request)
        meter = Meter(source="tokenizer")
        body = self._body(call, offer.model, meter)
        try:
            first = await anext(body)
        except (ClusterBusy, ClusterUnavailable) as error:
            raise LaneFailed(error.message, code=error.code) from error
        content_type = "text/event-stream" if call.request.is_stream else "application/json"
        return Answer(200, content_type, await begun(_resume(first, body)), meter)

    async def _body(self, call: Call, model: str, meter: Meter) -> AsyncGenerator[bytes]:
        requests = _generate_requests(call, speculate=self._speculate)
        writer = AnswerWriter(call, model, [_echo(call.generation, request.prompt) for request in requests])
        async with aclosing(self._events(requests)) as events:
            tally = _Tally(meter)
            async for number, event in events:
                tally.add(number, event)
                if isinstance(event, TokenEvent):
                    choice = number * requests[0].n + event.choice
                    if chunk := writer.token(choice, event):
                        yield chunk
        meter.is_complete = True
        yield writer.end(meter)

    async def _events(self, requests: list[GenerateRequest]) -> AsyncGenerator[_Numbered]:
        """Events of all prompts as they come, each with its prompt's number."""
        if len(requests) == 1:
            async with aclosing(self._controller.generate(requests[0])) as events:
                async for event in events:
                    yield 0, event
            return
        merged: asyncio.Queue[_Numbered | Exception] = asyncio.Queue(_MERGE_EVENTS)
        tasks = [asyncio.create_task(self._pump(at, request, merged)) for at, request in enumerate(requests)]
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
        self, number: int, request: GenerateRequest, merged: "asyncio.Queue[_Numbered | Exception]"
    ) -> None:
        try:
            async with aclosing(self._controller.generate(request)) as events:
                async for event in events:
                    await merged.put((number, event))
        except Exception as error:  # noqa: BLE001 - a task's edge: whoever merges raises it again
            await merged.put(error)


class _Tally:
    """Keeps a meter right at every moment, since a caller may leave at any."""

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


def _generate_requests(call: Call, *, speculate: bool) -> list[GenerateRequest]:
    """One for each prompt of the call. Raises RequestInvalid for more choices than a head takes."""
    request = call.generation
    prompts = _prompts(request)
    choices = (request.n or 1) * len(prompts)
    if choices > _CHOICES_MAX:
        raise RequestInvalid(f"{choices} choices are more than {_CHOICES_MAX}", "n")
    sampling, limits = _sampling(request), _limits(request)
    return [
        GenerateRequest(
            id=f"{call.id}/{at}",
            prompt=prompt,
            sampling=sampling,
            limits=limits,
            n=request.n or 1,
            cache_salt=call.tenant,
            speculate=speculate,
        )
        for at, prompt in enumerate(prompts)
    ]


def _prompts(request: GenerationRequest) -> list[Prompt]:
    if isinstance(request, ChatRequest):
        return [ChatPrompt([_plain(message) for message in request.messages])]
    if isinstance(request.prompt, str):
        return [TextPrompt(request.prompt)]
    token_ids = [part for part in request.prompt if isinstance(part, int)]
    if token_ids:
        return [TokenPrompt(token_ids)]
    return [
        TextPrompt(part) if isinstance(part, str) else TokenPrompt(part)
        for part in request.prompt
        if not isinstance(part, int)
    ]


def _plain(message: Message) -> dict[str, Any]:
    """A message as chat templates want it: content as one string, no empty fields."""
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text or "" for part in content)
    # Templates know "system"; "developer" is OpenAI's newer word for the same.
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": content or ""}


def _sampling(request: GenerationRequest) -> Sampling:
    return Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_k=max(0, request.top_k or 0),
        top_p=1.0 if request.top_p is None else request.top_p,
        min_p=request.min_p or 0.0,
        seed=0 if request.seed is None else 1 + request.seed % 2**61,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=request.repetition_penalty or 1.0,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
        logprobs=request.alternatives,
    )


def _limits(request: GenerationRequest) -> Limits:
    # OpenAI's completions stop after 16 tokens unless told otherwise; its chats go on to the context's end.
    default = None if isinstance(request, ChatRequest) else 16
    max_tokens = default if request.tokens_limit is None else request.tokens_limit
    return Limits(max_tokens=max_tokens, stop=request.stops, ignore_eos=bool(request.ignore_eos))


def _echo(request: GenerationRequest, prompt: Prompt) -> str:
    """What the answer begins with when the caller wants its prompt back."""
    if isinstance(request, ChatRequest) or not request.echo:
        return ""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    raise RequestInvalid("echo is only supported for text prompts", "echo")
