"""What is computed once for a key and a model is never stale: each decision equals one that is made without caches."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.metering.prices import CloudPrices, PriceBook
from accounting.money import Price
from gateway.admin import keys, limits
from gateway.admin.authority import Authority
from gateway.dialects.openai import Extras, ProviderPreferences
from gateway.errors import LaneLimited, LaneUnreachable
from gateway.identity.audit import MACHINE
from gateway.identity.caller import Caller
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.lanes.base import Lane, Offer, VersionedLane
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.cloud.worker.program import CloudWorker
from gateway.lanes.cloud.worker.providers import CloudConfiguration
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.pool.offers import Standing
from gateway.lanes.pool.report import BackendReport, ModelReport
from gateway.limits.local import LocalSource
from gateway.limits.plans import Plan, Plans
from gateway.routing.dispatch import Dispatch
from gateway.routing.router import Router
from gateway.settings import (
    CloudModel,
    CloudSettings,
    IdentitySettings,
    LaneName,
    PolicySettings,
    PoolBackend,
    PoolSettings,
    RoutingSettings,
)
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.errors import NotFound
from tests.databases import prepared
from tests.examples import examples
from tests.gateway.routing.offers import CLUSTER, EVERYBODY, MARKET, POOL, PRICE, Bench, FixedLane, call

LANES: tuple[LaneName, ...] = ("cluster", "pool", "cloud", "market")
LIVE = (CLUSTER, MARKET)
"""Offers of lanes that tell no version. At first there are none, so that what is computed once is kept."""
BACKENDS = ("desk", "shelf")
CLOUD_MODELS = ("m", "other")
LABELS = ("cluster", "market:0123456789ab", "pool:desk", "pool:shelf", "cloud:m", "cloud:other")
LISTED = CloudPrices.installed()
POLICY = PolicySettings(spend_nano_max=4_000_000)
FALLBACKS = {"m": ["other"]}
SECRET = b"secret" * 6


class Gateway:
    """A gateway with its caches, and the same decisions without them."""

    def __init__(self, directory: Directory) -> None:
        self.authority = Authority(directory, MACHINE)
        self.bench = Bench(fallbacks=FALLBACKS)
        self.pool = _pool()
        self.cloud = _cloud(self.pool)
        lanes = self.bench.lanes
        self.lanes: dict[LaneName, Lane] = {
            "cluster": lanes["cluster"],
            "pool": self.pool,
            "cloud": self.cloud,
            "market": lanes["market"],
        }
        self.router = self._router()
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

    def _router(self) -> Router:
        return Router(self.lanes, self.bench.health, RoutingSettings(fallbacks=FALLBACKS), POLICY, seed=1)

    def change_live(self, change: tuple[int, dict[str, Any] | None]) -> None:
        """Replace an offer by one with other values, or take it away."""
        number, values = change
        before = LIVE[number]
        given = self.bench.lanes[before.lane].given
        given[:] = [offer for offer in given if (offer.backend, offer.model) != (before.backend, before.model)]
        if values is not None:
            given.append(replace(before, **values))

    def report(self, change: tuple[str, BackendReport]) -> None:
        """A backend answers a probe."""
        name, report = change
        if backend := self.pool.pool.get(name):
            backend.heard(report)

    def miss(self, change: tuple[str, Standing]) -> None:
        """A backend does not answer a probe."""
        name, standing = change
        if backend := self.pool.pool.get(name):
            backend.missed(standing)

    def drain(self, change: tuple[str, bool]) -> None:
        name, draining = change
        if backend := self.pool.pool.get(name):
            backend.drain(draining=draining)

    def add(self, backend: PoolBackend) -> None:
        if self.pool.pool.get(backend.name) is None:
            asyncio.run(self.pool.pool.add(backend))

    def remove(self, name: str) -> None:
        if self.pool.pool.get(name):
            asyncio.run(_remove(self.pool, name))

    def loaded(self, change: tuple[str, float]) -> None:
        """A model had to be loaded, which took some seconds."""
        name, seconds = change
        for offer in self.pool.offers("m"):
            if offer.backend == name:
                self.pool.pool.loaded(offer, seconds)

    def alias(self, aliases: dict[str, list[str]]) -> None:
        self.pool.pool.set_aliases(aliases)

    def price(self, prices: dict[str, Price]) -> None:
        """An operator sets prices over those of the settings."""
        self.cloud.use(self.cloud.book_with(prices))

    def fail(self, label: str) -> None:
        """A request there breaks off, as often as it takes to pause the backend."""
        for _ in range(5):
            self._began(label).failed()

    def succeed(self, label: str) -> None:
        self._began(label).succeeded(10)

    def occupy(self, label: str) -> None:
        self._began(label)

    def ask_for_pause(self, label: str) -> None:
        self._began(label).refused(LaneLimited("slow down", retry_after_s=5, asks_for_pause=True))

    def unreachable(self, label: str) -> None:
        for _ in range(3):
            self._began(label).refused(LaneUnreachable("no connection"))

    def answered(self, change: tuple[str, bool]) -> None:
        """A probe finds that connections are possible."""
        label, was_down = change
        self.bench.health.of(label).breakers.answered(was_down=was_down)

    def _began(self, label: str) -> Dispatch:
        offers = [offer for name in ("m", "other") for lane in self.lanes.values() for offer in lane.offers(name)]
        return self.router.began(label, offer=next((offer for offer in offers if offer.label == label), None))

    def pass_time(self, seconds: float) -> None:
        self.bench.now_s += seconds

    def pause(self, lane: LaneName) -> None:
        self.paused ^= {lane}
        self.router.pause(self.paused)

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
            call(model="alias"),
            call(tools=[{"type": "function", "function": {"name": "f"}}]),
            call(millrace=Extras(privacy="internal")),
            call(provider=ProviderPreferences(ignore=["desk"])),
        ):
            decision = self.router.explain(remembered, asked)
            fresh = self._router()
            fresh.pause(self.paused)
            anew = fresh.explain(stored, asked)
            assert decision.as_data() == anew.as_data()
            assert [each.offer for each in decision.candidates] == [each.offer for each in anew.candidates]
            of_key = self.plans.of(remembered, asked.request.model)
            assert _amounts(of_key) == _amounts(Plans(self.source.counter).of(stored, asked.request.model))


def _pool() -> PoolLane:
    backends = tuple(PoolBackend(name=name, base_url="http://127.0.0.1:9/v1", kind="vllm") for name in BACKENDS)
    lane = PoolLane(PoolSettings(backends=backends, probe_timeout_s=0.05))
    for backend, context_tokens in zip(lane.pool.backends(), (None, 2000), strict=True):
        backend.heard(BackendReport((ModelReport("m", context_tokens=context_tokens),)))
    return lane


def _cloud(pool: PoolLane) -> CloudLane:
    usd = {"prompt_usd_per_mtok": "3", "completion_usd_per_mtok": "15"}
    settings = CloudSettings(models={name: CloudModel(model=f"acme/{name}", **usd) for name in CLOUD_MODELS})
    own = {("cloud", name): price for name, model in settings.models.items() if (price := model.own_price)}
    prices = PriceBook(own, "settings", LISTED)
    return CloudLane(settings, CloudWorker(CloudConfiguration({}, "none")), prices, pool.aliases)


async def _remove(lane: PoolLane, name: str) -> None:
    """Remove a backend, also one of the settings."""
    lane.pool.find(name).origin = "added"
    await lane.pool.remove(name)


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
NAMES = st.sampled_from(BACKENDS)
MODELS = st.builds(
    ModelReport,
    st.sampled_from(["m", "other", "own"]),
    context_tokens=st.sampled_from([None, 2000]),
    slots=st.sampled_from([None, 1, 4]),
    is_resident=st.booleans(),
    load_bytes=st.sampled_from([None, 10**10]),
    is_remote=st.booleans(),
    aliases=st.sampled_from([(), ("m",)]),
    state=st.sampled_from(["ready", "starting"]),
)
REPORTS = st.builds(
    BackendReport,
    st.lists(MODELS, max_size=2).map(tuple),
    queued=st.sampled_from([None, 3]),
    slots=st.none() | st.just(2),
)
ADDED = st.builds(
    PoolBackend,
    name=NAMES,
    base_url=st.just("http://127.0.0.1:9/v1"),
    models=st.sampled_from([("m",), ("m", "other")]),
    clearance=st.sampled_from([None, "public"]),
    region=st.sampled_from([None, "eu"]),
    weight=st.sampled_from([0.5, 1.0]),
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
    "change_live": st.tuples(st.integers(0, len(LIVE) - 1), st.none() | VALUES),
    "report": st.tuples(NAMES, REPORTS),
    "miss": st.tuples(NAMES, st.builds(Standing, st.sampled_from(["down", "starting"]), st.just("silent"))),
    "drain": st.tuples(NAMES, st.booleans()),
    "add": ADDED,
    "remove": NAMES,
    "loaded": st.tuples(NAMES, st.sampled_from([1.0, 60.0])),
    "alias": st.dictionaries(st.just("alias"), st.lists(st.sampled_from(["m", "other"]), min_size=1, max_size=2)),
    "price": st.dictionaries(
        st.sampled_from(CLOUD_MODELS), st.sampled_from([Price(9, 9, 9), Price(10**9, 0, 10**10)])
    ),
    "fail": st.sampled_from(LABELS),
    "succeed": st.sampled_from(LABELS),
    "occupy": st.sampled_from(LABELS),
    "ask_for_pause": st.sampled_from(LABELS),
    "unreachable": st.sampled_from(LABELS),
    "answered": st.tuples(st.sampled_from(LABELS), st.booleans()),
    "pass_time": st.sampled_from([0.01, 20.0]),
    "pause": st.sampled_from(["cloud", "market"]),
}


@settings(max_examples=examples(25, 1000), suppress_health_check=list(HealthCheck), deadline=None)
@given(st.lists(st.one_of([st.tuples(st.just(name), each) for name, each in STEPS.items()]), max_size=15))
def test_a_decision_equals_one_without_caches(directory: Directory, steps: list[tuple[str, Any]]) -> None:
    """Whatever changes between two requests: the key, its limits, the operator's pauses, prices, offers, health.

    The decisions' inputs that learning changes, such as speeds, are read for each request; nothing of them is kept.
    """
    gateway = Gateway(directory)
    gateway.compare()
    for name, value in steps:
        getattr(gateway, name)(value)
        gateway.compare()


class CountingLane(FixedLane):
    """A lane with a version that is set by hand. It counts how often it is asked."""

    version = 0
    asked = 0

    def offers(self, model: str) -> list[Offer]:
        self.asked += 1
        return super().offers(model)


@pytest.mark.parametrize("change", ["none", "version", "live offer", "time"])
def test_a_lane_with_a_version_is_asked_again_only_after_a_change(change: str) -> None:
    bench = Bench()
    kept, live = CountingLane("pool", POOL), bench.lanes["cluster"]
    assert isinstance(kept, VersionedLane)
    assert not isinstance(live, VersionedLane)
    router = Router({"cluster": live, "pool": kept}, bench.health, RoutingSettings(), seed=1)
    router.explain(EVERYBODY, call())
    match change:
        case "version":
            kept.version += 1
        case "live offer":
            live.given.append(CLUSTER)
        case "time":
            bench.now_s += 1.0
    for text in ("Again.", "And again."):
        router.explain(EVERYBODY, call(text))
    assert kept.asked == {"none": 1, "version": 2, "live offer": 3, "time": 2}[change]


def test_an_offer_of_a_lane_without_a_version_is_never_kept() -> None:
    bench = Bench(CLUSTER, POOL)
    router = Router(
        {"cluster": bench.lanes["cluster"], "pool": CountingLane("pool", POOL)}, bench.health, RoutingSettings()
    )
    assert {each.offer.label for each in router.explain(EVERYBODY, call()).candidates} == {"cluster", "pool:desk"}
    bench.lanes["cluster"].given.clear()
    assert [each.offer.label for each in router.explain(EVERYBODY, call()).candidates] == ["pool:desk"]


@pytest.mark.parametrize("change", ["report", "miss", "drain", "load", "alias", "add", "remove"])
def test_the_version_of_the_pool_tells_every_change_of_its_offers(change: str) -> None:
    lane = _pool()
    desk = lane.pool.find("desk")
    desk.heard(BackendReport((ModelReport("m", is_resident=False),)))
    before, version = _offers(lane), lane.version
    match change:
        case "report":
            desk.heard(BackendReport((ModelReport("m", is_resident=False),), queued=3))
        case "miss":
            desk.missed(Standing("down", "silent"))
        case "drain":
            desk.drain(draining=True)
        case "load":
            lane.pool.loaded(before[0], 60.0)
        case "alias":
            lane.pool.set_aliases({"alias": ["m"]})
        case "add":
            added = PoolBackend(name="new", base_url="http://127.0.0.1:9/v1", models=("m",))
            asyncio.run(lane.pool.add(added))
        case "remove":
            asyncio.run(_remove(lane, "shelf"))
    assert _offers(lane) != before
    assert lane.version != version


def _offers(lane: Lane) -> list[Offer]:
    return [offer for model in ("m", "alias") for offer in lane.offers(model)]


def test_the_version_of_the_cloud_tells_new_prices_and_aliases() -> None:
    pool = _pool()
    cloud = _cloud(pool)
    versions = [cloud.version]
    cloud.use(cloud.book_with({"m": Price(9, 9, 9)}))
    versions.append(cloud.version)
    pool.pool.set_aliases({"alias": ["m"]})
    versions.append(cloud.version)
    assert versions[0] != versions[1] != versions[2]
    assert cloud.version == versions[2]
