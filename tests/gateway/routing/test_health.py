"""What is learned of backends: breakers, failures that fade, rates of few observations, memories with bounds."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.dialects.openai import ChatRequest, CompletionRequest, Message
from gateway.errors import LaneLimited, LaneUnreachable
from gateway.lanes.base import Offer
from gateway.routing.breaker import BREAK_AFTER, Breaker, Breakers
from gateway.routing.fit import Fit
from gateway.routing.memory import USUAL_TOKENS, OutputLengths
from gateway.routing.prefixes import BLOCK_BYTES, BLOCKS_MAX, PrefixIndex, chain_of
from tests.gateway.routing.offers import EVERYBODY, POOL, Bench, call

DESK = "pool:desk"


def test_a_broken_backend_gets_a_pause_then_one_trial() -> None:
    bench = Bench(POOL)
    bench.fail(DESK, BREAK_AFTER)
    assert bench.rejected() == {DESK: "breaker"}
    bench.now_s += 5.1
    decision = bench.router.decide(EVERYBODY, call())
    assert decision.candidates
    assert bench.rejected() == {DESK: "breaker"}, "who was chosen for the trial is on its way"
    trial = bench.router.began(DESK, decision)
    assert bench.rejected() == {DESK: "breaker"}, "one trial at a time"
    trial.first_byte()
    assert bench.labels() == [DESK]
    trial.succeeded(10)
    trial.failed()  # a second report changes nothing
    record = bench.health.of(DESK)
    assert (record.in_flight, record.pending_tokens, record.speaking) == (0, 0, 0)
    assert not record.breakers.of("m").failures_in_row


def test_failures_of_one_model_are_its_own_and_a_backend_that_nobody_reaches_has_none() -> None:
    other = call(model="n")
    bench = Bench(POOL, replace(POOL, model="n"))
    bench.fail(DESK, BREAK_AFTER)
    assert (bench.labels(), bench.labels(asked=other)) == ([], [DESK])
    for _ in range(BREAK_AFTER):
        bench.router.began(DESK, bench.router.explain(EVERYBODY, other)).refused(LaneUnreachable("off"))
    assert bench.rejected(asked=other) == {DESK: "breaker"}
    assert bench.rejected(asked=call(model="m")) == {DESK: "breaker"}


def test_an_answered_probe_clears_refused_connections_and_a_return_clears_all_failures() -> None:
    breakers = Breakers()
    for _ in range(BREAK_AFTER):
        breakers.unreachable(1.0)
        breakers.failed("m", 1.0)
    assert breakers.barring("other", 1.0)
    breakers.answered(was_down=False)
    assert breakers.barring("other", 1.0) is None
    assert breakers.barring("m", 1.0), "a probe says nothing about a model"
    breakers.answered(was_down=True)
    assert breakers.barring("m", 1.0) is None


def test_breakers_are_clear_until_something_fails_or_asks_for_a_pause() -> None:
    breakers = Breakers()

    def are_clear() -> bool:
        return breakers.are_clear

    assert are_clear()
    breakers.unreachable(1.0)
    assert not are_clear()
    breakers.answered(was_down=False)
    assert are_clear()
    breakers.failed("m", 1.0)
    assert not are_clear()
    breakers.succeeded("m", 1.0)
    assert are_clear()
    breakers.asked("m", 1.0, 5.0, is_limit=True)
    breakers.succeeded("m", 1.0)
    assert not are_clear(), "the pause continues"
    breakers.succeeded("m", 7.0)
    assert are_clear()


def test_a_backend_that_asks_for_a_pause_gets_it() -> None:
    bench = Bench(POOL)
    bench.router.began(DESK, bench.router.explain(EVERYBODY, call())).refused(
        LaneLimited("limited", retry_after_s=7)
    )
    assert bench.rejected() == {DESK: "breaker"}
    assert "ends in 7 s" in bench.router.explain(EVERYBODY, call()).reason
    bench.now_s += 7.1
    assert bench.labels() == [DESK]


def test_failures_count_less_as_time_goes_by_and_one_is_no_verdict() -> None:
    bench = Bench(POOL)
    for _ in range(30):
        bench.serve(DESK)
    bench.fail(DESK)
    record = bench.health.of(DESK)
    soon = record.failure_share(bench.now_s)
    assert 0.02 < soon < 0.1
    assert record.failure_share(bench.now_s + 3600) < soon / 3


class BreakerMachine(RuleBasedStateMachine):
    """Whatever comes in whatever order, at most one trial runs, and every pause ends."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now_s = 0.0
        self.trials = 0

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        if seconds > 30:
            self.trials = 0

    @rule()
    def begin(self) -> None:
        if self.breaker.admits(self.now_s):
            is_trial = self.breaker.state(self.now_s) == "half_open"
            self.breaker.began(self.now_s)
            if is_trial:
                assert not self.breaker.admits(self.now_s)

    @rule(retry_after_s=st.none() | st.floats(-1, 1e9))
    def fail(self, retry_after_s: float | None) -> None:
        if retry_after_s is None:
            self.breaker.failed(self.now_s)
        self.breaker.asked(self.now_s, retry_after_s, is_limit=True)

    @rule()
    def succeed(self) -> None:
        self.breaker.succeeded()
        assert self.breaker.admits(max(self.now_s, self.breaker.asked_until_s))

    @rule()
    def leave(self) -> None:
        self.breaker.left()

    @invariant()
    def every_pause_ends(self) -> None:
        assert self.breaker.admits(self.now_s + 601)


TestBreaker = BreakerMachine.TestCase


@given(
    overhead=st.floats(0.001, 1),
    prompt=st.floats(1e-5, 1e-2),
    seed=st.integers(0, 1000),
)
def test_rates_are_found_from_few_noisy_observations(overhead: float, prompt: float, seed: int) -> None:
    rng, fit = random.Random(seed), Fit((0.1, 1e-3))
    for _ in range(60):
        tokens = rng.choice((50, 500, 2000, 8000))
        fit.observe((1.0, tokens), (overhead + prompt * tokens) * rng.uniform(0.9, 1.1))
    for tokens in (200, 4000):
        truth = overhead + prompt * tokens
        assert abs(fit.predict((1.0, tokens)) - truth) < 0.4 * truth


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 1e5)), max_size=50))
def test_rates_are_never_below_zero_whatever_is_seen(seen: list[tuple[float, float, float]]) -> None:
    fit = Fit((0.1, 1e-3, 1.0))
    for one, other, seconds in seen:
        fit.observe((1.0, one, other), seconds)
        assert all(rate >= 0 for rate in fit.rates)


def test_predictions_come_close_and_their_errors_are_kept() -> None:
    bench = Bench(POOL)
    for _ in range(40):
        bench.serve(DESK, first_s=2.0, token_s=0.1)
    predicted = bench.router.explain(EVERYBODY, call()).candidates[0].predicted
    assert abs(predicted.first_token_s - 2.0) < 0.4
    assert abs(predicted.token_s - 0.1) < 0.01
    assert 70 < predicted.tokens < 140
    figures = bench.router.accuracy()[DESK]
    assert figures["first_token_error_share"] < 0.3
    assert figures["token_error_share"] < 0.2


def test_a_new_plan_is_another_backend() -> None:
    health = Bench().health.of(DESK)
    before = Offer("cluster", "cluster", "m", token_s=0.05)
    rates = health.rates_of(before)
    assert health.rates_of(before) is rates
    assert health.rates_of(Offer("cluster", "cluster", "m", token_s=0.02)) is not rates


def test_answer_lengths_settle_near_what_is_usual_and_within_the_limit() -> None:
    lengths, rng = OutputLengths(), random.Random(1)
    assert lengths.expected("key", "m", None) == USUAL_TOKENS
    for _ in range(300):
        lengths.observe("key", "m", int(rng.lognormvariate(4.6, 0.5)))
    assert 80 < lengths.expected("key", "m", None) < 160
    assert lengths.expected("other key", "m", None) == lengths.expected("key", "m", None)
    assert lengths.expected("key", "m", 20) == 20
    for number in range(10_000):
        lengths.observe(f"key {number}", "m", 10)
    assert len(lengths._by_pair) <= 4096


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=40))
def test_a_match_is_as_long_as_walking_finds_and_memory_has_a_bound(prompts: list[list[int]]) -> None:
    index = PrefixIndex(blocks_max=10)
    for prompt in prompts:
        chain = _chain(prompt)
        index.insert("a", chain)
        assert index.blocks("a") <= 10
        walked = 0
        while walked < len(chain) and chain[walked] in index._seen["a"]:
            walked += 1
        assert index.matched_bytes("a", chain) == walked * BLOCK_BYTES
        assert index.matched_bytes("b", chain) == 0


def _chain(prompt: list[int]) -> list[int]:
    return [hash(tuple(prompt[: end + 1])) for end in range(len(prompt))]


def test_chains_agree_as_far_as_prompts_do_and_end_somewhere() -> None:
    shared = "You are the miller's clerk and answer in one sentence. " * 10
    one, other = (chain_of(call(shared + end * 100).request, "m") for end in ("Why? ", "When? "))
    same = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert same == (len("user\n") + len(shared)) // BLOCK_BYTES
    huge = ChatRequest(model="m", messages=[Message(role="user", content="x" * 10**6)] * 3)
    assert len(chain_of(huge)) == BLOCKS_MAX
    assert chain_of(CompletionRequest(model="m", prompt=[1, 2, 3])) == []
    assert not set(chain_of(call(shared).request, "m", "a")) & set(chain_of(call(shared).request, "m", "b"))


def test_a_cache_that_turns_out_smaller_is_remembered_as_smaller() -> None:
    index = PrefixIndex(blocks_max=1000)
    for number in range(1000):
        index.insert("a", [number])
    index.learn_size("a", believed=100, cached=0)
    index.insert("a", [1])
    assert index.blocks("a") == 1000, "zero from one that never told more says nothing"
    index.learn_size("a", believed=100, cached=90)
    index.learn_size("a", believed=100, cached=0)
    index.insert("a", [1])
    assert index.blocks("a") == 900
