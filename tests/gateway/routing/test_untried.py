"""A backend that has not answered yet: what is expected of it, and when it is tried."""

from dataclasses import replace

import pytest

from gateway.lanes.base import Offer
from gateway.routing.priors import Speed, prior_of
from tests.gateway.routing.offers import CLOUD, CLUSTER, EVERYBODY, POOL, Bench, call

LAPTOP = Offer("pool", "laptop", "m")
SLOW = Speed(0.2, 0.01, 0.2)


def test_the_nearest_evidence_counts() -> None:
    usual = prior_of(LAPTOP)
    small, large = (prior_of(replace(LAPTOP, size_bytes=size)) for size in (1_000_000_000, 40_000_000_000))
    assert small.token_s < usual.token_s < large.token_s == pytest.approx(8 * usual.token_s)
    assert prior_of(LAPTOP, replicas=[SLOW]) == SLOW
    sized = replace(LAPTOP, size_bytes=10_000_000_000)
    assert prior_of(sized, [(SLOW, 5_000_000_000)], [usual]) == SLOW.scaled(2)
    assert prior_of(LAPTOP, [(SLOW, 5_000_000_000)], [usual]) == usual, "without a size nothing can be scaled"
    assert prior_of(replace(CLUSTER, token_s=0.004), replicas=[SLOW]).token_s == 0.004
    assert prior_of(CLOUD, replicas=[SLOW]) == prior_of(CLOUD), "what a provider has is another machine"
    assert all(part > 0 for part in prior_of(LAPTOP, replicas=[Speed(0, 0, 0)])), "or it could never be learned"


def test_it_is_expected_to_do_as_the_same_model_does_elsewhere() -> None:
    bench = Bench(CLUSTER, LAPTOP)
    for _ in range(20):
        bench.serve("cluster", first_s=0.5, token_s=0.3)
    bench.now_s += 2
    by_label = {c.offer.label: c.predicted for c in bench.router.explain(EVERYBODY, call()).candidates}
    assert by_label["pool:laptop"].time_s == pytest.approx(by_label["cluster"].time_s, rel=0.3)
    bench.serve("pool:laptop", first_s=0.1, token_s=0.01)
    bench.now_s += 2
    assert bench.labels()[0] == "pool:laptop"


def test_it_is_tried_at_once_when_others_queue() -> None:
    bench = Bench(replace(CLUSTER, slots=2), LAPTOP, CLOUD)
    bench.serve("cluster", first_s=0.01, token_s=0.001)
    bench.now_s += 2
    chosen = []
    for _ in range(6):
        decision = bench.router.decide(EVERYBODY, call())
        chosen.append(decision.candidates[0].offer.label)
        bench.router.began(chosen[-1], decision)
    assert chosen[:3] == ["cluster", "cluster", "pool:laptop"]
    assert "not tried yet" in bench.router.explain(EVERYBODY, call()).reason


@pytest.mark.parametrize("why", ["it failed", "it is busy", "not loaded", "it has answered", "light"])
def test_otherwise_the_costs_decide(why: str) -> None:
    busy = replace(CLUSTER, slots=1, token_s=0.0001, first_token_s=0.01)
    weight = 0.1 if why == "light" else 1.0
    bench = Bench(busy, replace(POOL, slots=1, is_resident=why != "not loaded", load_s=30.0, weight=weight))
    bench.serve("cluster", first_s=0.01, token_s=0.0001)
    if why == "it failed":
        bench.fail("pool:desk")
    if why == "it is busy":
        bench.router.began("pool:desk")
    if why == "it has answered":
        bench.serve("pool:desk", token_s=3.0)
    bench.router.began("cluster")
    assert bench.labels() == ["cluster", "pool:desk"]
