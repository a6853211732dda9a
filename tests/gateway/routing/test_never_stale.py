"""What is computed once for a key and a model is never stale: each decision equals one that is made without caches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.money import Price
from gateway.admin import keys, limits
from gateway.admin.authority import Authority
from gateway.dialects.openai import Extras
from gateway.identity.audit import MACHINE
from gateway.identity.caller import Caller
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.lanes.base import Offer
from gateway.limits.local import LocalSource
from gateway.limits.plans import Plan, Plans
from gateway.routing.router import Router
from gateway.settings import IdentitySettings, LaneName, RoutingSettings
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.errors import NotFound
from tests.databases import prepared
from tests.examples import examples
from tests.gateway.routing.offers import CLOUD, CLUSTER, MARKET, POOL, PRICE, Bench, call

LANES: tuple[LaneName, ...] = ("cluster", "pool", "cloud", "market")
OFFERS = (CLUSTER, POOL, CLOUD, MARKET, replace(CLOUD, model="other"))
FALLBACKS = {"m": ["other"]}
SECRET = b"secret" * 6


class Gateway:
    """A gateway with its caches, and the same decisions without them."""

    def __init__(self, directory: Directory) -> None:
        self.authority = Authority(directory, MACHINE)
        self.bench = Bench(*OFFERS, fallbacks=FALLBACKS)
        self.source = LocalSource(None)
        self.plans = Plans(self.source.counter)
        self.paused: set[str] = set()
        key = keys.create_key(self.authority, keys.NewKey(name="k", user="owner", lanes=LANES))
        self.token, self.key_id = key.token, key.row.key_id

    def change_key(self, fields: dict[str, Any]) -> None:
        keys.change_key(self.authority, self.key_id, keys.ChangedKey(**fields))

    def set_limit(self, fields: dict[str, Any]) -> None:
        limits.set_limit(self.authority, limits.NewLimit(**fields | {"scope": self._scope(fields["scope"])}))

    def remove_limit(self, fields: dict[str, Any]) -> None:
        name = {each: fields[each] for each in fields if each != "amount"}
        try:
            limits.remove_limit(self.authority, limits.LimitName(**name | {"scope": self._scope(fields["scope"])}))
        except NotFound:
            return

    def _scope(self, scope: str) -> str:
        return f"key:{self.key_id}" if scope == "key" else scope

    def change_offer(self, change: tuple[int, dict[str, Any] | None]) -> None:
        """Replace an offer by one with other values, or take it away."""
        number, values = change
        before = OFFERS[number]
        given = self.bench.lanes[before.lane].given
        given[:] = [offer for offer in given if (offer.backend, offer.model) != (before.backend, before.model)]
        if values is not None:
            given.append(replace(before, **values))

    def fail(self, offer: Offer) -> None:
        """A request there breaks off, as often as it takes to pause the backend."""
        for _ in range(5):
            self.bench.router.began(offer.label, offer=offer).failed()

    def succeed(self, offer: Offer) -> None:
        self.bench.router.began(offer.label, offer=offer).succeeded(10)

    def occupy(self, offer: Offer) -> None:
        self.bench.router.began(offer.label, offer=offer)

    def pass_time(self, seconds: float) -> None:
        self.bench.now_s += seconds

    def pause(self, lane: LaneName) -> None:
        self.paused ^= {lane}
        self.bench.router.pause(self.paused)

    @property
    def caller(self) -> Caller:
        """As a request finds it: in memory, else in the database."""
        known = self.authority.directory.keys
        found = known.cached(self.token) or known.find(self.token)
        assert found
        return found

    def compare(self) -> None:
        remembered, stored = self.caller, self.authority.directory.keys.find_by_id(self.key_id)
        assert stored == remembered
        for asked in (
            call(),
            call("word " * 3000),
            call(model="other"),
            call(millrace=Extras(privacy="internal")),
        ):
            decision = self.bench.router.explain(remembered, asked)
            fresh = Router(self.bench.lanes, self.bench.health, RoutingSettings(fallbacks=FALLBACKS), seed=1)
            fresh.pause(self.paused)
            assert decision.as_data() == fresh.explain(stored, asked).as_data()
            of_key = self.plans.of(remembered, asked.request.model)
            assert _amounts(of_key) == _amounts(Plans(self.source.counter).of(stored, asked.request.model))


def _amounts(plan: Plan) -> list[tuple[object, int]]:
    return [(counter.key, counter.amount) for counter in (*plan.counted, *plan.tokens, *plan.spend)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directory]:
    engine = open_engine(prepared(tmp_path_factory.mktemp("stale")).dsn)
    read, write = read_sessions(engine), write_sessions(engine)
    yield Directory.of(Keys(SECRET, read, write), IdentitySettings(), LANES, read, write)
    engine.dispose()


def _one_of(**choices: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these fields."""
    return st.fixed_dictionaries({}, optional=choices)


RIGHTS = _one_of(
    lanes=st.lists(st.sampled_from(LANES), min_size=1, unique=True).map(tuple),
    models=st.sampled_from([None, ("m",), ("other",), ("m", "other")]),
    regions=st.sampled_from([None, ("eu",)]),
    privacy=st.sampled_from(["public", "internal", "private"]),
)
LIMIT = st.fixed_dictionaries(
    {
        "scope": st.sampled_from(["key", "user:owner", "organization:home"]),
        "measure": st.sampled_from(["requests", "spend"]),
        "span": st.just("day"),
        "model": st.sampled_from([None, "m"]),
        "amount": st.sampled_from(["0", "1", "1000"]),
    }
)
VALUES = _one_of(
    price=st.sampled_from([PRICE, replace(PRICE, price=Price(9, 9, 9)), None]),
    state=st.sampled_from(["ready", "starting"]),
    slots=st.sampled_from([None, 1, 4]),
    clearance=st.sampled_from(["public", "private"]),
    region=st.sampled_from([None, "eu"]),
    context_tokens=st.sampled_from([None, 2000]),
    queued=st.sampled_from([None, 3]),
    weight=st.sampled_from([0.5, 1.0]),
)
STEPS: dict[str, st.SearchStrategy[Any]] = {
    "change_key": RIGHTS,
    "set_limit": LIMIT,
    "remove_limit": LIMIT,
    "change_offer": st.tuples(st.integers(0, len(OFFERS) - 1), st.none() | VALUES),
    "fail": st.sampled_from(OFFERS),
    "succeed": st.sampled_from(OFFERS),
    "occupy": st.sampled_from(OFFERS),
    "pass_time": st.sampled_from([0.01, 20.0]),
    "pause": st.sampled_from(["cloud", "market"]),
}


@settings(max_examples=examples(25, 1000), suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.one_of([st.tuples(st.just(name), each) for name, each in STEPS.items()]), max_size=15))
def test_a_decision_equals_one_without_caches(directory: Directory, steps: list[tuple[str, Any]]) -> None:
    """Whatever changes between two requests: the key, its limits, the operator's pauses, prices, offers, health."""
    gateway = Gateway(directory)
    gateway.compare()
    for name, value in steps:
        getattr(gateway, name)(value)
        gateway.compare()
