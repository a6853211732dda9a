"""An answer across several coordinators and pipelines has no repeats and no gaps, and cannot break them all."""

import itertools
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import wire
from cluster.engine.completion import Completion
from cluster.engine.request_table import QUEUE_PATIENCE_S, RequestTable
from cluster.engine.scheduler import Scheduler
from cluster.engine.sequence import Sequence
from cluster.engine.tickets import BREAKS_MAX, REQUESTS_MAX, Ticket
from cluster.generation import (
    Accepted,
    Done,
    GenerateRequest,
    GenerationEvent,
    Limits,
    Resume,
    SampledToken,
    Sampling,
    TextPrompt,
    TokenEvent,
)
from cluster.models.text import Detokenizer, TextCodec
from cluster.resumption import LOSSES_MAX, ResumedRequest
from tests.clusters import DEMO_MODEL

CODEC = TextCodec(DEMO_MODEL)
PROMPT = CODEC.encode(TextPrompt("Once upon a time"))
VOCABULARY = CODEC.tokenizer.get_vocab_size()


def completion(limits: Limits) -> Completion:
    return Completion.begin(
        0, Sequence(list(PROMPT), len(PROMPT), Sampling()), limits, 512, Detokenizer(CODEC, PROMPT)
    )


def feed(reader: Completion, token_ids: list[int]) -> Iterator[TokenEvent]:
    for token_id in token_ids:
        if reader.finished:
            return
        reader.sequence.tokens.append(token_id)
        if event := reader.accept(SampledToken(token_id)):
            yield event


@given(
    drawn=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=24),
    told=st.integers(0, 24),
    stop=st.sampled_from([(), ("e",), ("the", "an"), ("\n",)]),
    max_tokens=st.one_of(st.none(), st.integers(1, 24)),
)
def test_another_coordinator_continues_after_the_text_of_the_first(
    drawn: list[int], told: int, stop: tuple[str, ...], max_tokens: int | None
) -> None:
    """Whatever part was sent, with half characters and begun stop strings held back, the whole is the same."""
    limits = Limits(max_tokens=max_tokens, stop=stop)
    undisturbed = list(feed(completion(limits), drawn))
    before = undisturbed[:told]
    had = [token_id for event in before for token_id in event.token_ids]
    text = "".join(event.text for event in before)
    second = completion(limits)
    left = second.resume(Resume(token_ids=had, characters=len(text)))
    after = [*([left] if left else []), *feed(second, drawn[len(had) :])]
    assert text + "".join(event.text for event in after) == "".join(event.text for event in undisturbed)
    if undisturbed:
        assert [*before, *after][-1].finish == undisturbed[-1].finish
        assert [*before, *after][-1].completion_tokens == undisturbed[-1].completion_tokens


def test_a_caller_sees_one_stream_across_several_tries() -> None:
    asked = ResumedRequest(GenerateRequest(id="r", prompt=TextPrompt("a"), n=2))
    first = asked.next_try()
    assert first.sampling.seed, "every coordinator must draw the same tokens"
    seen: list[GenerationEvent | None] = [
        asked.pass_on(Accepted(3)),
        asked.pass_on(TokenEvent(0, "ab", 2, 100, token_ids=(5, 6))),
        asked.pass_on(TokenEvent(1, "x", 1, 50, token_ids=(7,), finish="stop")),
    ]
    assert asked.note_loss(counts=True)
    second = asked.next_try()
    assert (second.id, second.sampling) == ("r#1", first.sampling)
    assert second.resume == (Resume(token_ids=[5, 6], characters=2), Resume(token_ids=[7], characters=1))
    seen += [
        asked.pass_on(Accepted(3)),
        asked.pass_on(TokenEvent(1, "", 1, 0, finish="stop")),
        asked.pass_on(TokenEvent(0, "c", 3, 40, token_ids=(8,), finish="length")),
        asked.pass_on(Done(3, 4, 40)),
    ]
    told = [event for event in seen if event]
    assert [event.text for event in told if isinstance(event, TokenEvent)] == ["ab", "x", "c"]
    assert [type(event) for event in told] == [Accepted, TokenEvent, TokenEvent, TokenEvent, Done]
    assert [event.compute_ns for event in told if not isinstance(event, Accepted)] == [100, 50, 140, 190]


def test_a_beginning_from_elsewhere_survives_the_loss_of_a_coordinator() -> None:
    """The caller had two tokens from another gateway. The first coordinator here sends their text once more."""
    had = Resume(token_ids=[5, 6], characters=0)
    asked = ResumedRequest(GenerateRequest(id="r", prompt=TextPrompt("a"), resume=(had,)))
    assert not asked.is_begun
    assert asked.next_try().resume == (had,)
    asked.note_loss(counts=True)
    again = asked.next_try()
    assert again.resume == (had,)
    assert not again.is_retry, "no coordinator here has begun it"
    asked.pass_on(TokenEvent(0, "ab", 2, 0))
    asked.pass_on(TokenEvent(0, "c", 3, 10, token_ids=(7,)))
    asked.note_loss(counts=True)
    second = asked.next_try()
    assert second.resume == (Resume(token_ids=[5, 6, 7], characters=3),)
    assert second.is_retry


def test_a_request_that_loses_many_coordinators_is_given_up() -> None:
    asked = ResumedRequest(GenerateRequest(id="r", prompt=TextPrompt("a")))
    for _ in range(LOSSES_MAX):
        assert not asked.is_hopeless
        asked.next_try()
        asked.note_loss(counts=True)
    assert asked.is_hopeless
    asked.pass_on(TokenEvent(0, "a", 1, 1, token_ids=(1,)))
    asked.note_loss(counts=True)
    assert not asked.is_hopeless, "it has got further"


class PipelineSeries:
    """Pipelines in a row with one request table. Each breaks when it computes the poison's row at `deadly`."""

    def __init__(self, *, kept: bool, chance: Random) -> None:
        self.table = RequestTable()
        self.kept = kept
        self.chance = chance
        self.scheduler = Scheduler(1, 2, 4, 64)
        self.told: dict[str, list[wire.Message]] = {}
        self.epochs = itertools.count(1)
        self.breaks = 0

    def ask(
        self,
        name: str,
        max_tokens: int,
        resume: tuple[Resume, ...] = (),
        prompts: int = 20,
        *,
        is_retry: bool = False,
    ) -> Ticket:
        self.told[name] = []
        request = GenerateRequest(
            id=name,
            prompt=TextPrompt(name),
            sampling=Sampling(temperature=0.0, seed=1),
            limits=Limits(max_tokens=max_tokens, ignore_eos=True),
            cache_salt=name,
            resume=resume,
            is_retry=is_retry,
        )
        ticket = Ticket(request, list(PROMPT) * prompts, self.told[name].append)
        self.table.take(ticket)
        return ticket

    def serve(self, context_tokens: int = 512) -> None:
        if not self.kept:
            self.scheduler = Scheduler(1, 2, 4, 64)
        self.scheduler.restart(next(self.epochs), [0, 1])
        self.table.serve(self.scheduler, CODEC, context_tokens, VOCABULARY)

    def run(self, poison: Ticket, deadly: int) -> bool:
        """Run until no work is left, and return True, or until the pipeline breaks."""
        flights: list[wire.Step] = []
        while True:
            while (work := self.scheduler.next_step()) and len(flights) < 3:
                flights.append(work[0])
            if not flights:
                return True
            step = flights.pop(0)
            owners = {sequence.slot: sequence for sequence in self.scheduler.running}
            for slot, start, count in zip(step.slots, step.starts, step.counts, strict=True):
                is_poison = owners.get(slot) in list(poison.open_sequences)
                if is_poison and start <= deadly < start + count:
                    self.break_pipeline({owners[slot] for slot in step.slots if slot in owners})
                    return False
            drawn = [self.chance.randrange(VOCABULARY) for wanted in step.wanted if wanted]
            answer = wire.Sampled(
                step.epoch, step.batch, [SampledToken(token) for token in drawn], [1] * len(drawn), [1, 1]
            )
            self.table.hand_out(self.scheduler.commit(answer, 0.001))
            self.scheduler.check_integrity()

    def break_pipeline(self, computing: set[Sequence]) -> None:
        self.breaks += 1
        self.table.interrupt()
        self.table.blame(computing)


def test_the_next_suspect_is_tried_when_the_first_has_waited_too_long() -> None:
    pipelines = PipelineSeries(kept=True, chance=Random(0))
    one, other = pipelines.ask("one", 20), pipelines.ask("other", 20)
    for _ in range(BREAKS_MAX - 1):
        pipelines.serve()
        pipelines.break_pipeline(set(pipelines.scheduler.waiting))
    pipelines.serve()
    assert (one.is_parked, other.is_parked) == (False, True)
    one.waiting_since_s -= QUEUE_PATIENCE_S + 1
    pipelines.table.look_at_clock()
    assert isinstance(pipelines.told["one"][-1], wire.Rejected)
    assert not other.is_parked
    assert pipelines.run(one, -1)
    assert isinstance(pipelines.told["other"][-1], wire.Events)


def test_only_a_request_begun_by_a_lost_coordinator_may_exceed_the_limit() -> None:
    pipelines = PipelineSeries(kept=True, chance=Random(0))
    for at in range(REQUESTS_MAX + 1):
        pipelines.ask(str(at), 4)
    assert isinstance(pipelines.told[str(REQUESTS_MAX)][-1], wire.Rejected)
    had = (Resume(token_ids=[PROMPT[0]], characters=0),)
    pipelines.ask("claimed", 4, resume=had)
    assert isinstance(pipelines.told["claimed"][-1], wire.Rejected), "any caller may say so"
    pipelines.ask("begun", 4, resume=had, is_retry=True)
    assert "begun" in pipelines.table.tickets


@given(kept=st.booleans(), deadly=st.integers(0, 90), chance=st.randoms(use_true_random=False))
def test_only_the_request_that_breaks_every_pipeline_is_ended(*, kept: bool, deadly: int, chance: Random) -> None:
    """The deadly row may be in its prompt or its answer, alone in a step or beside others."""
    pipelines = PipelineSeries(kept=kept, chance=chance)
    innocent = [pipelines.ask("one", 20), pipelines.ask("two", 30)]
    poison = pipelines.ask("poison", 40)
    innocent.append(pipelines.ask("three", 25))
    pipelines.serve()
    while not pipelines.run(poison, deadly):
        assert pipelines.breaks <= BREAKS_MAX * 4
        pipelines.serve()
    assert not pipelines.table.tickets
    (rejected,) = [message for message in pipelines.told["poison"] if isinstance(message, wire.Rejected)]
    assert rejected.code == "stage_lost"
    for ticket in innocent:
        last = pipelines.told[ticket.id][-1]
        assert isinstance(last, wire.Events)
        assert isinstance(last.events[-1], Done)
        assert last.events[-1].completion_tokens == ticket.request.limits.max_tokens


@pytest.mark.parametrize("kept", [True, False])
def test_requests_too_long_for_the_next_pipeline_end_and_others_continue(*, kept: bool) -> None:
    """The lost machine had the memory for long contexts."""
    pipelines = PipelineSeries(kept=kept, chance=Random(7))
    long, short = pipelines.ask("long", 200), pipelines.ask("short", 200, prompts=10)
    prompt_tokens = len(long.prompt)
    pipelines.serve()
    assert not pipelines.run(long, prompt_tokens + 9)
    context_tokens = prompt_tokens + 8
    late = pipelines.ask("late", 40)
    pipelines.serve(context_tokens)
    assert pipelines.run(long, 2**30)
    finishes = {}
    for name, told in pipelines.told.items():
        events = [event for message in told if isinstance(message, wire.Events) for event in message.events]
        finishes[name] = [event.finish for event in events if isinstance(event, TokenEvent) and event.finish]
        assert all(not isinstance(event, Done) for event in events[:-1])
    assert finishes == {"long": ["length"], "short": ["length"], "late": []}
    assert context_tokens < len(long.completions[0].sequence.tokens) < context_tokens + 9
    assert len(short.completions[0].sequence.tokens) == context_tokens
    (rejected,) = [message for message in pipelines.told[late.id] if isinstance(message, wire.Rejected)]
    assert rejected.code == "context_length_exceeded"
    assert not pipelines.table.tickets
