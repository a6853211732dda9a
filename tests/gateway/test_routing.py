"""Which lane answers: hard rules before weights, own machines before paid ones, reasons always."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from accounting.money import Price
from accounting.prices import PricedModel
from gateway.identity.caller import Caller
from gateway.lanes.base import Offer, State
from gateway.lanes.features import Feature
from gateway.routing.decision import Decision, Facts, Need, decide
from gateway.routing.health import Health, LaneHealth
from gateway.settings import LaneName, RoutingSettings

WEIGHTS = RoutingSettings()
NEED = Need(model="m", features=frozenset(), prompt_tokens=100, output_tokens=100)
PRICE = PricedModel("cloud", "m", "test", Price(3_000_000_000, 3_000_000_000, 15_000_000_000), provider="p")
LOCAL = Offer("cluster", "cluster", "m", slots=4)
POOL = Offer("pool", "desk", "m", slots=4)
CLOUD = Offer("cloud", "p/m", "m", price=PRICE)


def caller(*lanes: LaneName) -> Caller:
    return Caller("id", "mr-abc", "owner", "home", frozenset(lanes))


EVERYBODY = caller("cluster", "pool", "cloud")


def route(*facts: Facts, need: Need = NEED, who: Caller = EVERYBODY) -> Decision:
    return decide(need, who, list(facts), WEIGHTS)


def fact(offer: Offer, health: Health | None = None, *, is_open: bool = True) -> Facts:
    return Facts(offer, health or Health(), is_open)


def lanes(decision: Decision) -> list[str]:
    return [candidate.offer.lane for candidate in decision.candidates]


def test_own_machines_come_first() -> None:
    assert lanes(route(fact(CLOUD), fact(LOCAL), fact(POOL))) == ["pool", "cluster", "cloud"]


def test_a_generous_limit_is_no_reason_to_pay() -> None:
    """Many clients always send the most they would take; an idle machine of one's own still comes first."""
    for limit in (1000, 4096, 100_000):
        decision = route(fact(CLOUD), fact(LOCAL), need=replace(NEED, output_tokens=limit))
        assert lanes(decision) == ["cluster", "cloud"]


def test_the_cloud_takes_over_when_waiting_costs_more_than_it_does() -> None:
    busy = Health(in_flight=40, request_s=20.0)
    decision = route(fact(CLOUD), fact(LOCAL, busy))
    assert lanes(decision) == ["cloud", "cluster"]
    assert "waiting" in decision.candidates[1].reason
    assert lanes(route(fact(CLOUD), fact(LOCAL, replace(busy, in_flight=4)))) == ["cluster", "cloud"]


def test_a_rule_goes_before_everything_and_is_named() -> None:
    decision = route(fact(CLOUD), who=caller("cluster", "pool"))
    assert not decision.candidates
    assert decision.rejections[0].rule
    assert decision.rejections[0].rule.name == "lanes"
    assert "mr-abc allows cluster, pool, not cloud" in decision.reason


def test_what_a_lane_cannot_do_is_said() -> None:
    plain = replace(LOCAL, features=frozenset())
    decision = route(fact(plain), need=replace(NEED, features=frozenset({"tools"})))
    assert "does not support tools" in decision.reason


def test_a_broken_backend_gets_a_pause_then_one_trial() -> None:
    now = [0.0]
    health = LaneHealth(clock=lambda: now[0])
    for _ in range(3):
        assert health.of("pool:desk").is_open(now[0])
        health.began("pool:desk")
        health.failed("pool:desk")
    assert not health.of("pool:desk").is_open(now[0])
    now[0] += 5.1
    assert health.of("pool:desk").is_open(now[0])
    health.began("pool:desk")
    assert not health.of("pool:desk").is_open(now[0]), "one trial at a time"
    health.succeeded("pool:desk", 0.1, 1.0, 10)
    assert health.of("pool:desk").is_open(now[0])
    assert health.of("pool:desk").in_flight == 0


def test_rates_are_learned() -> None:
    health = LaneHealth()
    for _ in range(60):
        health.began("a")
        health.succeeded("a", first_token_s=2.0, duration_s=12.0, tokens=101)
    record = health.of("a")
    assert record.first_token_s is not None
    assert record.token_s is not None
    assert abs(record.first_token_s - 2.0) < 1e-6
    assert abs(record.token_s - 0.1) < 1e-6


@given(
    offers=st.lists(
        st.tuples(
            st.sampled_from([LOCAL, POOL, CLOUD]),
            st.sampled_from(["ready", "starting", "down"]),
            st.booleans(),
            st.floats(0, 1),
            st.integers(0, 100),
        ),
        max_size=8,
    ),
    allowed=st.sets(st.sampled_from(["cluster", "pool", "cloud"])),
    features=st.sets(st.sampled_from(["tools", "json"])),
    lane=st.sampled_from([None, "cluster", "pool", "cloud"]),
)
def test_every_offer_is_ranked_or_rejected_with_a_reason(
    offers: list[tuple[Offer, State, bool, float, int]],
    allowed: set[LaneName],
    features: set[Feature],
    lane: LaneName | None,
) -> None:
    facts = [
        fact(replace(offer, state=state), Health(in_flight=busy, failure_share=failures), is_open=is_open)
        for offer, state, is_open, failures, busy in offers
    ]
    need = replace(NEED, features=frozenset(features), lane=lane)
    decision = route(*facts, need=need, who=caller(*allowed))
    assert len(decision.candidates) + len(decision.rejections) == len(facts)
    costs = [candidate.cost_nano for candidate in decision.candidates]
    assert costs == sorted(costs)
    for candidate in decision.candidates:
        assert candidate.offer.lane in allowed
        assert candidate.offer.state != "down"
        assert lane in (None, candidate.offer.lane)
    assert decision.reason
    assert decision == route(*facts, need=need, who=caller(*allowed)), "the same facts, the same decision"
