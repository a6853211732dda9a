"""Which lane answers: hard rules before weights, own machines before paid ones, reasons always."""

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.openai import Extras, MaxPrice, ProviderPreferences, SpeechRequest
from gateway.lanes.base import Call, Offer
from gateway.quota import Quota
from gateway.routing.policy import clearance_of
from gateway.routing.router import SAMPLE
from gateway.settings import LaneName, PolicySettings, RoutingSettings
from gateway.settings.base import PRIVACY_RANK, Privacy
from runtime.errors import RequestInvalid
from tests.gateway.routing.offers import CLOUD, CLUSTER, EVERYBODY, MARKET, POOL, Bench, call, caller


def test_own_machines_come_first() -> None:
    assert Bench(CLOUD, CLUSTER, POOL).labels() == ["pool:desk", "cluster", "cloud:big-m"]


@pytest.mark.parametrize("limit", [1000, 4096, 100_000])
def test_a_generous_limit_is_no_reason_to_pay(limit: int) -> None:
    """Many clients always send the most they would take; an idle machine of one's own still comes first."""
    assert Bench(CLOUD, CLUSTER).labels(asked=call(max_tokens=limit)) == ["cluster", "cloud:big-m"]


def test_the_cloud_takes_over_when_waiting_costs_more_than_it_does() -> None:
    bench = Bench(CLOUD, CLUSTER)
    for _ in range(3):
        bench.router.began("cluster", bench.router.explain(EVERYBODY, call()))
    assert bench.labels() == ["cluster", "cloud:big-m"]
    for _ in range(40):
        bench.router.began("cluster", bench.router.explain(EVERYBODY, call()))
    decision = bench.router.explain(EVERYBODY, call())
    assert decision.candidates[0].offer.lane == "cloud"
    assert "waiting" in decision.candidates[1].reason


def test_the_plan_of_the_cluster_speaks_until_it_was_seen_at_work() -> None:
    bench = Bench(replace(CLUSTER, first_token_s=0.2, token_s=0.004))
    predicted = bench.router.explain(EVERYBODY, call(max_tokens=100)).candidates[0].predicted
    assert 0.3 < predicted.time_s < 0.9


@pytest.mark.parametrize(
    ("offer", "who", "fields", "check", "word"),
    [
        (CLOUD, caller("pool"), {}, "lanes", "mr-abc allows pool, not cloud"),
        (POOL, caller(models=frozenset({"x"})), {}, "models", "does not allow m"),
        (CLOUD, caller(privacy="internal"), {}, "privacy", "may receive public requests only"),
        (CLOUD, EVERYBODY, {"millrace": Extras(privacy="private")}, "privacy", "private"),
        (CLOUD, caller(regions=frozenset({"eu"})), {}, "regions", "allows eu"),
        (POOL, EVERYBODY, {"millrace": Extras(lane="cloud")}, "lane", "asks for the cloud lane"),
        (replace(POOL, features=frozenset()), EVERYBODY, {"tools": [{"type": "x"}]}, "features", "tools"),
        (replace(POOL, kinds=frozenset(("embedding",))), EVERYBODY, {}, "kind", "embedding model"),
        (replace(POOL, context_tokens=500), EVERYBODY, {"max_tokens": 900}, "context", "context of 500"),
        (replace(POOL, state="down", note="is off"), EVERYBODY, {}, "down", "is off"),
        (replace(POOL, state="draining"), EVERYBODY, {}, "draining", "draining"),
        (CLOUD, caller(quotas=(Quota("key:id", "spend", 10, "day"),)), {}, "spend", "budget of key:id"),
        (POOL, EVERYBODY, {"provider": ProviderPreferences(only=["cloud"])}, "provider", "only"),
        (POOL, EVERYBODY, {"provider": ProviderPreferences(ignore=["Desk"])}, "provider", "ignore"),
        (POOL, EVERYBODY, {"provider": ProviderPreferences(quantizations=["fp8"])}, "provider", "quantizations"),
        (
            replace(CLOUD, keeps_data=True),
            EVERYBODY,
            {"provider": ProviderPreferences(data_collection="deny")},
            "provider",
            "data_collection",
        ),
        (
            CLOUD,
            EVERYBODY,
            {"provider": ProviderPreferences(max_price=MaxPrice(completion="14.9"))},
            "price",
            "max_price.completion",
        ),
    ],
)
def test_what_stands_against_an_offer_is_named_with_its_remedy(
    offer: Offer, who: Any, fields: dict[str, Any], check: str, word: str
) -> None:
    decision = Bench(offer).router.explain(who, call(**fields))
    assert not decision.candidates
    (rejection,) = decision.rejections
    assert rejection.objection.check == check
    assert word in rejection.reason
    assert word in decision.reason
    assert rejection.objection.remedy
    assert decision.as_data()["rejected"][0]["rule"] == check


def test_one_request_costs_no_more_than_the_settings_allow() -> None:
    assert Bench(CLOUD, policy=PolicySettings(spend_nano_max=1000)).rejected() == {"cloud:big-m": "spend"}
    assert Bench(CLOUD, policy=PolicySettings(spend_nano_max=10**10)).labels() == ["cloud:big-m"]


def test_preferences_order_candidates_and_may_forbid_others() -> None:
    bench = Bench(POOL, CLUSTER, CLOUD)
    wished = ProviderPreferences(order=["ACME", "cluster"])
    assert bench.labels(asked=call(provider=wished)) == ["cloud:big-m", "cluster", "pool:desk"]
    strict = ProviderPreferences(order=["acme"], allow_fallbacks=False)
    assert bench.labels(asked=call(provider=strict)) == ["cloud:big-m"]
    assert bench.labels(asked=call(provider=ProviderPreferences(allow_fallbacks=False))) == ["pool:desk"]
    assert bench.labels(asked=call(provider=ProviderPreferences(sort="price")))[-1] == "cloud:big-m"
    assert bench.labels(asked=call(provider=ProviderPreferences(sort="throughput")))[0] == "cloud:big-m"


@pytest.mark.parametrize("price", ["cheap", "NaN", "-1", float("inf"), "1e99"])
def test_a_price_that_is_none_is_refused_by_its_field(price: str | float) -> None:
    asked = call(provider=ProviderPreferences(max_price=MaxPrice(prompt=price)))
    with pytest.raises(RequestInvalid, match=r"provider\.max_price\.prompt") as refused:
        Bench(POOL).router.decide(EVERYBODY, asked)
    assert refused.value.param == "provider.max_price.prompt"


def test_fallbacks_come_after_the_model_and_under_the_same_rules() -> None:
    small = replace(POOL, backend="attic", model="small")
    bench = Bench(
        replace(POOL, context_tokens=10),
        small,
        replace(CLOUD, model="last"),
        fallbacks={"m": ["small", "last"]},
    )
    decision = bench.router.explain(EVERYBODY, call("word " * 100))
    assert [(c.offer.model, c.offer.served_as) for c in decision.candidates] == [
        ("small", "small"),
        ("last", "last"),
    ]
    assert bench.labels(caller(privacy="private"), call("word " * 100)) == ["pool:attic"]
    assert "context" in decision.rejections[0].reason
    assert decision.reason.startswith("small in place of m: pool:attic: about")
    no_others = call("word " * 100, provider=ProviderPreferences(allow_fallbacks=False))
    assert bench.labels(asked=no_others) == []


def test_the_cluster_itself_says_what_is_too_long_where_nobody_else_could_take_it() -> None:
    short = replace(CLUSTER, context_tokens=10)
    assert Bench(short).labels(asked=call("word " * 100)) == ["cluster"]
    assert Bench(short, POOL).rejected(asked=call("word " * 100)) == {"cluster": "context"}


def test_fallbacks_in_a_circle_are_refused() -> None:
    assert RoutingSettings(fallbacks={"a": ("b",), "b": ("c",)}).fallbacks["a"] == ("b",)
    with pytest.raises(ValueError, match="a -> b -> a"):
        RoutingSettings(fallbacks={"a": ("b",), "b": ("a",)})


def test_the_known_prompt_goes_where_it_is_known() -> None:
    replica = replace(POOL, backend="second")
    bench = Bench(POOL, replica)
    asked = call("A long system prompt about mills and rivers. " * 60)
    bench.router.began("pool:second", bench.router.explain(EVERYBODY, asked)).left()
    decision = bench.router.explain(EVERYBODY, asked)
    assert decision.candidates[0].offer.backend == "second"
    assert "cached" in decision.candidates[0].reason
    # Another tenant, or another label, shares nothing.
    for other in (call(asked.request.messages[0].content, tenant="b"),):  # type: ignore[union-attr, arg-type]
        assert bench.router.explain(EVERYBODY, other).candidates[0].predicted.load.matched_tokens == 0
    labeled = bench.router.explain(caller(privacy="internal"), asked)
    assert all(c.predicted.load.matched_tokens == 0 for c in labeled.candidates)


def test_a_cold_model_is_loaded_once_the_waits_come_to_its_loading_time() -> None:
    warm, cold = replace(POOL, slots=1), replace(POOL, backend="cold", slots=1, is_resident=False, load_s=20.0)
    bench = Bench(warm, cold)
    chosen = []
    for _ in range(12):
        decision = bench.router.decide(EVERYBODY, call())
        chosen.append(decision.candidates[0].offer.backend)
        bench.router.began(decision.candidates[0].offer.label, decision)
    assert chosen[0] == "desk"
    assert "cold" in chosen[1:]


def test_of_many_backends_some_are_drawn_and_those_that_know_the_prompt() -> None:
    many = [replace(POOL, backend=f"b{at}") for at in range(100)]
    bench = Bench(*many)
    asked = call("What mills are there in this valley, and who built them? " * 10)
    bench.router.began("pool:b77", bench.router.explain(EVERYBODY, asked))
    labels = bench.labels(asked=asked)
    assert len(labels) == SAMPLE
    assert "pool:b77" in labels


NAMES: tuple[LaneName, ...] = ("cluster", "pool", "cloud", "market")
LABELS: tuple[Privacy, ...] = ("public", "internal", "private")


@given(
    offers=st.lists(
        st.builds(
            lambda base, number, **more: replace(base, backend=f"b{number}", **more),
            st.sampled_from([CLUSTER, POOL, CLOUD, MARKET]),
            st.integers(0, 5),
            place=st.integers(0, 3),
            state=st.sampled_from(["ready", "starting", "draining", "down"]),
            clearance=st.sampled_from(LABELS),
            weight=st.floats(0, 10),
            context_tokens=st.sampled_from([None, 5, 10_000]),
            queued=st.sampled_from([None, 0, 50]),
        ),
        max_size=8,
        unique_by=lambda offer: offer.label,
    ),
    allowed=st.sets(st.sampled_from(NAMES)),
    privacy=st.sampled_from(LABELS),
    weights=st.fixed_dictionaries(
        {name: st.integers(0, 10**12) for name in ("time_nano_per_s", "speed_nano_per_s", "failure_nano")}
    ),
    order=st.lists(st.sampled_from(["pool", "cloud", "b1"]), max_size=3),
)
def test_no_weight_and_no_wish_makes_a_forbidden_candidate(
    offers: list[Offer], allowed: set[LaneName], privacy: Privacy, weights: dict[str, Any], order: list[str]
) -> None:
    bench = Bench(*offers, **weights)
    asked = call(provider=ProviderPreferences(order=order))
    who = replace(caller(privacy=privacy), lanes=frozenset(allowed))
    decision = bench.router.explain(who, asked)
    assert len(decision.candidates) + len(decision.rejections) == len(offers)
    for candidate in decision.candidates:
        offer = candidate.offer
        assert offer.lane in allowed
        assert offer.state in ("ready", "starting")
        assert PRIVACY_RANK[clearance_of(offer)] >= PRIVACY_RANK[privacy]
        assert offer.context_tokens != 5 or offer.lane == "cluster", "which says itself what is too long"
    assert decision.reason
    assert decision.as_data() == bench.router.explain(who, asked).as_data(), "the same facts, the same decision"
    assert decision.as_data() == bench.router.decide(who, asked).as_data(), "who asks is told what would be done"


@given(
    slots=st.sampled_from([None, 1, 4]),
    seen=st.lists(st.tuples(st.floats(0.01, 30), st.floats(0.001, 1), st.integers(2, 500)), max_size=12),
    loads=st.lists(st.integers(0, 5000), min_size=2, max_size=8),
)
def test_more_load_never_makes_a_backend_cheaper(
    slots: int | None, seen: list[tuple[float, float, int]], loads: list[int]
) -> None:
    bench = Bench(replace(POOL, slots=slots))
    for first_s, token_s, tokens in seen:
        bench.serve("pool:desk", first_s, token_s, tokens)
    costs = []
    for load in sorted(loads):
        bench.health.of("pool:desk").in_flight = load // 50
        bench.health.of("pool:desk").pending_tokens = load
        predicted = bench.router.explain(EVERYBODY, call()).candidates[0].predicted
        costs.append((predicted.cost_nano, predicted.first_token_s))
    assert [cost for cost, _ in costs] == sorted(cost for cost, _ in costs)
    assert [first_s for _, first_s in costs] == sorted(first_s for _, first_s in costs)


def test_with_defaults_a_paid_lane_takes_over_from_a_queue_of_a_few_seconds() -> None:
    """Callers that may pay wait for own machines while these begin within some two seconds, and no longer."""
    bench = Bench(replace(CLUSTER, slots=2), CLOUD)
    for _ in range(20):
        bench.serve("cluster", first_s=0.1, token_s=0.02)
        bench.serve("cloud:big-m", first_s=0.3, token_s=0.005)
        bench.now_s += 2
    chosen = []
    for _ in range(16):
        decision = bench.router.decide(EVERYBODY, call())
        chosen.append(decision.candidates[0])
        bench.router.began(chosen[-1].offer.label, decision)
    assert chosen[0].offer.lane == "cluster"
    assert chosen[-1].offer.lane == "cloud"
    assert max(candidate.predicted.first_token_s for candidate in chosen) < 4


@pytest.mark.parametrize("stream_format", ["sse", "audio"])
def test_speech_in_events_counts_as_a_stream(stream_format: Literal["sse", "audio"]) -> None:
    """Its prompt is pending at the backend until the first event; an answer in one piece does not show that."""
    bench = Bench(POOL)
    request = SpeechRequest(model="m", input="Good morning.", stream_format=stream_format)
    decision = bench.router.explain(EVERYBODY, Call("req_1", "speech", request, b"{}"))
    bench.router.began("pool:desk", decision)
    assert (bench.health.of("pool:desk").pending_tokens > 0) == (stream_format == "sse")
