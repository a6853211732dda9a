"""The coordinator's side of its callers: their connections, their requests and their events."""

import asyncio
from dataclasses import dataclass, field

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.engine.coordinator import Coordinator
from cluster.engine.seeds import fresh_seed
from cluster.engine.tickets import CHOICES_MAX, Cancelled, Ticket, places_for, rejected
from cluster.errors import ClusterBusy, ClusterUnavailable, GenerationError, LinkLost, PeerRejected, RequestInvalid
from cluster.generation import ChatPrompt, Done, GenerateRequest
from cluster.models.grammar_check import check_grammar
from cluster.models.text import TextCodec
from cluster.models.tool_calls.grammar import Thinking, write_grammar
from cluster.net.channel import Channel

log = structlog.get_logger(__name__)

# A caller that lets this many messages pile up has stopped reading.
OUTGOING_MAX = 20_000


@dataclass(slots=True, eq=False)
class _Caller:
    """One connection. Messages from the coordinator's thread wait in `outgoing` for the writer task."""

    channel: Channel
    loop: asyncio.AbstractEventLoop
    outgoing: asyncio.Queue[wire.Message] = field(default_factory=lambda: asyncio.Queue(OUTGOING_MAX))
    requests: set[str] = field(default_factory=set)
    preparing: set[asyncio.Task[None]] = field(default_factory=set)

    def tell(self, message: wire.Message) -> None:
        """Queue a message for the caller. The coordinator's thread calls this."""
        self.loop.call_soon_threadsafe(self._queue, message)

    def _queue(self, message: wire.Message) -> None:
        if isinstance(message, wire.Rejected) or (
            isinstance(message, wire.Events) and message.events and isinstance(message.events[-1], Done)
        ):
            self.requests.discard(message.request_id)
        try:
            self.outgoing.put_nowait(message)
        except asyncio.QueueFull:
            log.warning("caller reads too slowly", peer=self.channel.address)
            self.channel.writer.transport.abort()


class Reception:
    """Serves every caller's connection for one coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def serve(self, channel: Channel) -> None:
        """Serve one caller until it hangs up, then cancel what it still has running.

        Raise PeerRejected if it is no gateway.
        """
        if channel.peer is None or channel.peer.role != "gateway":
            raise PeerRejected("only gateways may ask for completions")
        caller = _Caller(channel, asyncio.get_running_loop())
        writing = asyncio.create_task(_write(caller))
        try:
            while True:
                message, _ = await channel.receive()
                match message:
                    case wire.Generate(request):
                        self._accept(caller, request)
                    case wire.Cancel(request_id) if request_id in caller.requests:
                        caller.requests.discard(request_id)
                        self._coordinator.deliver(Cancelled(request_id))
                    case _:
                        pass
        finally:
            for task in (writing, *caller.preparing):
                task.cancel()
            for request_id in caller.requests:
                self._coordinator.deliver(Cancelled(request_id))

    def _accept(self, caller: _Caller, request: GenerateRequest) -> None:
        """Prepare each request in its own task, so that a long prompt delays no other request."""
        if len(caller.preparing) >= places_for(request):
            caller.tell(rejected(request.id, ClusterBusy("too many requests arrived at once. Try again shortly.")))
            return
        caller.requests.add(request.id)
        task = asyncio.create_task(self._admit(caller, request), name=f"prepare {request.id}")
        caller.preparing.add(task)
        task.add_done_callback(caller.preparing.discard)

    async def _admit(self, caller: _Caller, request: GenerateRequest) -> None:
        try:
            ticket = await self._prepare(caller, request)
        except GenerationError as error:
            caller.tell(rejected(request.id, error))
        except Exception:  # the edge of one request: the connection carries others, too
            log.exception("request cannot be prepared", request_id=request.id)
            caller.tell(rejected(request.id, GenerationError("the prompt cannot be prepared")))
        else:
            if request.id in caller.requests:  # Otherwise it was cancelled meanwhile.
                self._coordinator.deliver(ticket)

    async def _prepare(self, caller: _Caller, request: GenerateRequest) -> Ticket:
        codec = self._coordinator.codec
        if codec is None:
            raise ClusterUnavailable("no model is assigned to this coordinator")
        if not 1 <= request.n <= CHOICES_MAX:
            raise RequestInvalid(f"n must be between 1 and {CHOICES_MAX}", "n")
        if len(request.resume) not in (0, request.n):
            raise RequestInvalid(f"{len(request.resume)} choices to resume of {request.n}", "resume")
        if not request.sampling.seed:
            request = replace(request, sampling=replace(request.sampling, seed=fresh_seed()))
        if request.constraint and request.limits.ignore_eos:
            # A constrained answer has an end, and nothing could follow it.
            request = replace(request, limits=replace(request.limits, ignore_eos=False))
        # The tokenizer takes tens of milliseconds for long prompts: keep it off the loop that serves all callers.
        prepared = await asyncio.to_thread(_prepare, codec, request, self._coordinator.context_tokens)
        token_ids, is_thinking, grammar = prepared
        return Ticket(request, token_ids, caller.tell, is_thinking, grammar)


async def _write(caller: _Caller) -> None:
    try:
        while True:
            await caller.channel.send(await caller.outgoing.get())
    except LinkLost as error:
        log.info("caller disconnected", peer=caller.channel.address, reason=str(error))
    finally:  # However writing ended, a connection that carries nothing back is useless.
        caller.channel.writer.transport.abort()


def _prepare(codec: TextCodec, request: GenerateRequest, tokens_max: int) -> tuple[list[int], bool, str]:
    """Turn the prompt into tokens and the constraint into a grammar, which is empty without one.

    The second value says whether the prompt ends within a thought. This takes milliseconds, longer for long prompts
    and large schemas. Raise RequestInvalid, naming the field, and ContextLengthExceeded.
    """
    if not isinstance(request.prompt, ChatPrompt):
        return codec.encode(request.prompt, tokens_max), False, ""
    rendered = codec.render(request.prompt)
    thought = codec.format.thought
    is_thinking = thought is not None and rendered.rstrip().endswith(thought[0])
    grammar = _grammar(codec, request, rendered, is_thinking=is_thinking)
    return codec.encode_text(rendered, tokens_max), is_thinking, grammar


def _grammar(codec: TextCodec, request: GenerateRequest, rendered: str, *, is_thinking: bool) -> str:
    if request.constraint is None:
        return ""
    thinking: Thinking = "begun" if is_thinking else "perhaps"
    thought = codec.format.thought
    # An empty thought in the prompt says that the model must not think.
    if thought and rendered.rstrip().endswith(thought[1]):
        thinking = "never"
    grammar = write_grammar(request.constraint, codec.format, codec.special_ids(), thinking)
    check_grammar(grammar)
    return grammar.lark
