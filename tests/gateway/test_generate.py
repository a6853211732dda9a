"""A request's journey inside one process: what a busy backend means, and that nothing is paid for twice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.app import Services
from gateway.errors import LaneUnreachable
from gateway.lanes.base import Answer, Call, Lane, Offer
from gateway.settings import LaneName
from runtime.errors import LaneBrokeOff, LaneFailed
from tests.fakes import openai_provider as provider
from tests.gateway.http.edges import Edge, edge, served, with_lanes

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("model", "status", "retry_after"), [("fake.rate-limited", 429, "7"), ("fake.overloaded", 503, "3")]
)
async def test_a_busy_backend_is_not_a_broken_one(
    tmp_path: Path, model: str, status: int, retry_after: str
) -> None:
    with provider.openai_provider() as desk:
        async with edge(tmp_path, f"{desk.origin}/v1", models=(model,), key=provider.KEY) as running:
            asked: dict[str, Any] = {"model": model, "millrace": {"deadline_s": 1}}
            answered = await running.ask(**asked)
            assert (answered.status, answered.headers["retry-after"]) == (status, retry_after)
            # It is not asked again before its time, and our caller is told how long that is.
            again = await running.ask(**asked)
            assert (again.status, again.headers["retry-after"]) == (status, retry_after)
            assert len(desk.requests) == 1
            assert running.services.health.of("pool:first").breakers.of(model).failures_in_row == 0


async def test_proxies_are_told_not_to_gather_a_stream(tmp_path: Path) -> None:
    with provider.openai_provider() as desk:
        async with edge(tmp_path, f"{desk.origin}/v1", models=("fake",), key=provider.KEY) as running:
            answered = await running.ask(model="fake", stream=True)
            assert answered.headers["cache-control"] == "no-cache"
            assert answered.headers["x-accel-buffering"] == "no"


class TwoProviders:
    """A paid lane of two providers that both fail in one way; counts how often it is asked."""

    name: LaneName = "cloud"

    def __init__(self, failure: LaneFailed, *, dearer: int = 1) -> None:
        self._failure = failure
        self._dearer = dearer
        self.asked = 0

    def models(self) -> list[str]:
        return ["second"]

    def offers(self, model: str) -> list[Offer]:
        prices = {"first": Price(0, 0, 10**9), "second": Price(0, 0, self._dearer * 10**9)}
        return [
            Offer(
                "cloud",
                name,
                model,
                price=PricedModel("cloud", "second", "test", price, "acme", max_output_tokens=10),
            )
            for name, price in prices.items()
        ]

    async def open(self, call: Call, offer: Offer) -> Answer:
        self.asked += 1
        raise self._failure


@asynccontextmanager
async def paid(tmp_path: Path, cloud: Lane, credits_nano: int = 10**9) -> AsyncIterator[Edge]:
    """An edge with no lane but this one, and money for it."""
    async with edge(tmp_path) as running:
        await running.services.ledger.credit("c1", "owner", credits_nano, "test")
        async with served(_with_cloud(running.services, cloud)) as other:
            yield other


def _with_cloud(services: Services, cloud: Lane) -> Services:
    lanes: dict[LaneName, Lane] = {"cloud": cloud}
    return with_lanes(services, lanes)


@pytest.mark.parametrize(
    ("failure", "asked"),
    [(LaneUnreachable("x"), 2), (LaneFailed("x answered 500"), 2), (LaneBrokeOff("x"), 1)],
)
async def test_paid_work_is_not_asked_for_twice(tmp_path: Path, failure: LaneFailed, asked: int) -> None:
    providers = TwoProviders(failure)
    async with paid(tmp_path, providers) as running:
        assert (await running.ask(model="second")).status == 502
        assert providers.asked == asked


@pytest.mark.parametrize(("credits_nano", "asked"), [(10_000, 1), (19_999, 1), (20_000, 2)])
async def test_a_dearer_provider_is_asked_when_it_is_covered(
    tmp_path: Path, credits_nano: int, asked: int
) -> None:
    """The first may cost 10,000 nano, the second twice that: what is put aside grows, or nobody is asked."""
    providers = TwoProviders(LaneUnreachable("x"), dearer=2)
    async with paid(tmp_path, providers, credits_nano) as running:
        await running.ask(model="second")
        assert providers.asked == asked
