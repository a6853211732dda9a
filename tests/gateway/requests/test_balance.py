"""Whatever happens, in whatever order: every enter has its leave, every hold is settled, nothing stays behind."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from accounting.rules.held import Hold
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.finished_request import Ended
from gateway.billing.ledger_service import LedgerService
from gateway.quota import Measure, Quota, Span
from gateway.routing.breaker import Breakers
from gateway.settings import RoutingSettings
from tests.gateway.http.edges import DONE, SSE, Edge, Writer, backend, chunk, said, until, whole
from tests.gateway.requests.roads import ANSWER, left, receive, road, send, with_paid_lane

pytestmark = pytest.mark.anyio

REQUESTS = 150
_PLENTY = 10**15


class Chaos:
    """Does what it likes with each request."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    async def __call__(self, body: bytes, writer: Writer) -> None:
        chance, is_stream = self._chance, b'"stream": true' in body
        what = chance.choice(("good", "good", "good", "500", "429", "cut", "reset", "silent", "slow"))
        if what in ("silent", "slow"):
            await asyncio.sleep(90 if what == "silent" else chance.random() / 5)
        if what == "reset":
            writer.transport.abort()
        elif what in ("500", "429"):
            writer.write(whole(b"{}", what.encode() + b" No", b"retry-after: 1\r\n" if what == "429" else b""))
        elif not is_stream:
            writer.write(whole(ANSWER)[: 80 if what == "cut" else None])
        else:
            writer.write(SSE + chunk(said("one ")))
            await asyncio.sleep(chance.random() / 50)
            if what != "cut":
                writer.write(chunk(said("two", "stop")) + chunk(DONE) + b"0\r\n\r\n")
        if what == "cut":
            writer.close()


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """By its request's id how often a hold was placed and settled."""
    counts: Counter[str] = Counter()
    hold, settle = LedgerService.hold, Bookkeeper.settle

    async def holding(self: LedgerService, request_id: str, *given: Any) -> Hold:
        placed = await hold(self, request_id, *given)
        counts["holds"] += 1
        counts[request_id] += 1
        return placed

    def settling(self: Bookkeeper, ended: Ended) -> int:
        counts["settled"] += 1
        if hold := ended.settlement.hold:
            counts[hold.request_id] -= 1
        return settle(self, ended)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LedgerService, "hold", holding)
        patch.setattr(Bookkeeper, "settle", settling)
        yield counts


@asynccontextmanager
async def chaotic(tmp_path: Path, seed: int) -> AsyncIterator[Edge]:
    patience = {"first_byte_s": 0.4, "silence_s": 0.4, "total_s": 2.0}
    routing = RoutingSettings(queue_s=0.5)
    async with (
        backend(Chaos(seed)) as one,
        backend(Chaos(seed + 1)) as two,
        backend(Chaos(seed + 2)) as paid,
        road(
            tmp_path,
            one.base_url,
            two.base_url,
            backend={"slots": 4, "kind": "vllm"},
            pool=patience,
            routing=routing,
        ) as running,
        with_paid_lane(running, paid.base_url, "paid", patience_s=0.4) as other,
    ):
        _limit(other)
        yield other


def _limit(running: Edge) -> None:
    """The key has a limit of every kind, and stays within all."""
    services = running.services
    caller = services.keys.find(running.key)
    assert caller
    spans: dict[Measure, Span | None] = {
        "requests": "minute",
        "tokens": "minute",
        "concurrency": None,
        "spend": "day",
    }
    for measure, span in spans.items():
        services.directory.quotas.set(Quota(f"key:{caller.key_id}", measure, _PLENTY, span))


def _check_limits(running: Edge) -> None:
    """Requests went through them, and all have left."""
    caller = running.services.keys.find(running.key)
    assert caller
    plan = running.services.limits.plans.of(caller, "m")
    assert [counter.left < _PLENTY for counter in plan.requests + plan.tokens] == [True, True]
    assert [counter.left for counter in plan.slots] == [_PLENTY]
    assert not any(counter.held or counter.tickets for counter in plan.counted + plan.tokens + plan.spend)


@pytest.mark.parametrize("seed", range(2))
async def test_nothing_stays_behind(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    async def one(running: Edge) -> None:
        await asyncio.sleep(chance.random() * 1.5)
        fields: dict[str, Any] = {"stream": chance.random() < 0.5, "model": chance.choice(("m", "m", "paid"))}
        if chance.random() < 0.4:
            fields["temperature"] = 0
        if chance.random() < 0.3:
            fields["millrace"] = {"continue_on_failure": True}
        connection = await send(running, **fields)
        if chance.random() < 0.35:
            await asyncio.sleep(chance.random() / 3)
            connection[1].close()
        else:
            answered = await receive(connection)
            assert answered.status in (200, 429, 502, 503, 504), answered.content

    async with chaotic(tmp_path, seed) as running:
        with counted() as counts:
            healing = asyncio.create_task(_heal(running))
            await asyncio.gather(*(one(running) for _ in range(REQUESTS)))
            healing.cancel()
            await until(lambda: left(running) == 0)
        placed, settled = counts.pop("holds"), counts.pop("settled")
        assert placed > REQUESTS // 20  # on a busy machine many hang up before their hold
        assert settled >= REQUESTS // 2  # who hangs up early enough is never asked what it wanted
        assert not any(counts.values()), +counts
        _check_limits(running)
        # What a lease has free goes back when nobody has asked for a while.
        async with asyncio.timeout(60):
            while (await running.services.ledger.balance("owner")).held_nano:
                await asyncio.sleep(0.2)


async def _heal(running: Edge) -> None:
    """Nobody is spared because it failed before: the breakers have tests of their own."""
    health = running.services.health
    while True:
        await asyncio.sleep(0.02)
        for label in health.labels():
            health.of(label).breakers = Breakers()
