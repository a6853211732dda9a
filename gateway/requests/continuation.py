"""Continues a broken stream at another backend, from the text so far.

Only for requests that ask for it: another model, or the same one with other sampling, continues where the first
stopped. Never across costs: both backends are free of charge. Never with tools, schemas, log-probabilities or
several choices, because half of such an answer cannot be continued.
"""

from functools import partial
from typing import Any

import msgspec
import orjson
import structlog
from msgspec import structs

from cluster.errors import GenerationError
from gateway.dialects.openai import GENERATES, ChatRequest, CompletionRequest, read_request
from gateway.lanes.base import Answer, Call, Meter, Offer, Out
from gateway.lanes.body import Sink
from gateway.lanes.features import HINTS
from gateway.requests.context import RequestContext
from gateway.requests.failover_target import FailoverTargets, keeping_awake
from runtime.errors import LaneFailed
from runtime.sse import DONE, EventSplitter

log = structlog.get_logger(__name__)

_TIMES_MAX = 2
_TEXT_CHARS_MAX = 2**20
_SAME = ("id", "created", "model", "system_fingerprint")
# Fields beside the text. No backend could continue an answer that has them.
_BESIDE = ("tool_calls", "function_call", "reasoning_content", "reasoning", "refusal", "audio")

_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])


def continues(call: Call) -> bool:
    """Return whether a broken stream of this call is continued; for nearly all calls, one check says no."""
    extras = call.request.millrace
    return extras is not None and extras.continue_on_failure and _can_be_joined(call)


async def send_on(targets: FailoverTargets, context: RequestContext, answer: Answer, out: Out) -> None:
    """Send an answer; if it breaks off, continue at another backend. `answer.meter` has the sum at the end.

    Raises the last backend's error.
    """
    stream = RememberedStream(out)
    writer: Out = stream
    part = answer
    failed: set[str] = set()
    while True:
        try:
            await part.body.send(writer)
            return
        except (LaneFailed, GenerationError) as error:
            broken = context.offer
            failed.add(broken.label if broken else "")
            more = await _rest(targets, context, stream, failed)
            if more is None:
                raise
            targets.attempts.note_error(broken, error)  # the handler of a raised error records it
            backend = context.offer.label if context.offer else ""
            log.warning("answer interrupted", request_id=context.call.id, reason=str(error), continued_on=backend)
        finally:
            if part is not answer:
                await part.body.close()
                _add(answer.meter, part.meter)
        stream.note(f"continued on {backend}")
        part, writer = more, JoinedStream(stream)


async def _rest(
    targets: FailoverTargets, context: RequestContext, stream: "RememberedStream", failed: set[str]
) -> Answer | None:
    if context.dispatch:
        context.dispatch.failed()
    if len(failed) > _TIMES_MAX or not stream.can_go_on:
        return None
    call = next_call(context.call, stream)
    decision = targets.router.decide(context.caller, call)
    with keeping_awake(stream.note):
        return await targets.open(context, call, decision, failed, partial(_may_go_on, context))


def _add(sum_: Meter, part: Meter) -> None:
    """Note a further part, whose prompt was the first prompt and the text so far."""
    sum_.completion_tokens += part.completion_tokens
    sum_.compute_ns += part.compute_ns
    sum_.is_complete = part.is_complete
    sum_.finish_reasons = part.finish_reasons
    if part.source == "estimate":
        sum_.source = "estimate"


def _may_go_on(context: RequestContext, offer: Offer) -> bool:
    """Return whether the offer can continue a text, and is free like the first one."""
    takes_up = offer.continues or context.call.kind == "completion"
    return takes_up and offer.price is None and context.offer is not None and context.offer.price is None


def _can_be_joined(call: Call) -> bool:
    request = call.request
    if call.kind not in GENERATES or not request.is_stream or call.features.keys() - HINTS:
        return False
    generation = call.generation
    if (generation.n or 1) > 1 or generation.alternatives >= 0:
        return False
    return isinstance(generation, ChatRequest) or _is_one_text(generation)


def _is_one_text(request: CompletionRequest) -> bool:
    return isinstance(request.prompt, str) and not request.echo


class RememberedStream(Sink):
    """Forwards a stream, and remembers the forwarded text."""

    def __init__(self, out: Out) -> None:
        super().__init__(out)
        self._events = EventSplitter()
        self.head: dict[str, Any] = {}
        self.text = ""
        self.tokens = 0
        """The number of events with text, which approximates the tokens."""
        self._is_more_than_text = False
        self._is_over = False

    @property
    def can_go_on(self) -> bool:
        return not self._is_more_than_text and not self._is_over and len(self.text) <= _TEXT_CHARS_MAX

    def write(self, data: bytes) -> None:
        for event in self._events.feed(data):
            self._read_event(event)
        self._out.write(data)

    def note(self, text: str) -> None:
        """Send a comment, which clients of event streams ignore."""
        self._out.write(b": %b\n\n" % text.encode())

    def _read_event(self, data: bytes) -> None:
        event = _as_object(data)
        if event is None:
            self._is_over = self._is_over or data == DONE
            return
        self.head = self.head or {name: event[name] for name in _SAME if name in event}
        choice = _first_choice(event)
        delta = choice.get("delta") if "delta" in choice else choice
        if not isinstance(delta, dict):
            return
        text = delta.get("content") if "delta" in choice else delta.get("text")
        if isinstance(text, str) and text:
            self.text += text
            self.tokens += 1
        self._is_more_than_text = self._is_more_than_text or any(delta.get(name) for name in _BESIDE)
        self._is_over = self._is_over or bool(choice.get("finish_reason") or event.get("error"))


class JoinedStream(Sink):
    """Writes the other backend's stream as a part of the begun answer."""

    def __init__(self, stream: RememberedStream) -> None:
        super().__init__(stream)
        self._stream = stream
        self._events = EventSplitter()
        self._said_tokens = stream.tokens

    def write(self, data: bytes) -> None:
        for event in self._events.feed(data):
            if written := self._rewritten(event):
                self._out.write(b"data: %b\n\n" % written)

    def _rewritten(self, data: bytes) -> bytes | None:
        """Return the event; None if it has nothing new: the role was already sent."""
        event = _as_object(data)
        if event is None:
            return data
        choice = _first_choice(event)
        delta = choice.get("delta")
        is_opening = isinstance(delta, dict) and delta.pop("role", None) and not any(delta.values())
        if is_opening and not choice.get("finish_reason"):
            return None
        if isinstance(usage := event.get("usage"), dict):
            _add_usage(usage, self._said_tokens)
        return orjson.dumps(event | self._stream.head)


def next_call(call: Call, stream: RememberedStream) -> Call:
    """Return the caller's request for the rest: the text so far is the beginning of its answer."""
    if not stream.text:
        # Fields for replicas are not for the caller.
        return structs.replace(call, request=read_request(call.kind, call.raw))
    fields = _top_level.decode(call.raw)
    request = call.generation
    if isinstance(request, ChatRequest):
        message = msgspec.json.encode({"role": "assistant", "content": stream.text})
        messages = bytes(fields["messages"]).strip()
        fields["messages"] = msgspec.Raw(messages[:-1] + b"," + message + b"]")
        # Tells vLLM, SGLang and llama-server that the last message is unfinished; Ollama assumes this by default.
        fields["continue_final_message"] = msgspec.Raw(b"true")
        fields["add_generation_prompt"] = msgspec.Raw(b"false")
    else:
        fields["prompt"] = msgspec.Raw(msgspec.json.encode(f"{request.prompt}{stream.text}"))
    for name in ("max_tokens", "max_completion_tokens"):
        limit = getattr(request, name, None)
        if limit is not None:
            fields[name] = msgspec.Raw(b"%d" % max(1, limit - stream.tokens))
    raw = msgspec.json.encode(fields)
    return Call(call.id, call.kind, read_request(call.kind, raw), raw, call.tenant)


def _add_usage(usage: dict[str, Any], tokens: int) -> None:
    """Count the earlier text as completion tokens, not as prompt tokens."""
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int):
        usage["prompt_tokens"] = max(0, prompt - tokens)
        usage["completion_tokens"] = completion + tokens
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _as_object(data: bytes) -> dict[str, Any] | None:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None


def _first_choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}
