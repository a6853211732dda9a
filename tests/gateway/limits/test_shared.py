"""Limits that several gateways share: each here has a source of its own, and all have the same real Redis."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import BudgetUnavailable
from gateway.identity.caller import Caller
from gateway.limits.central import Central, CounterStanding
from gateway.limits.counters import CounterKey
from gateway.limits.leased import LeasedCounter
from gateway.limits.leases import LeaseSource
from gateway.limits.limits import Limits
from gateway.limits.local import Reader
from gateway.limits.orders import Grant, Order
from gateway.limits.ticket import Ticket
from gateway.quota import Quota, Span
from runtime.errors import BudgetExceeded, RateLimited
from tests.gateway.limits.callers import caller, quota
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio

LEASE_S = 1.5
# Nothing ends that should not, on however slow a machine.
LONG_LEASE_S = 60.0
DEAD_LEASE_S = 4.0
# A machine that has other things to do answers late, and must not look like one that is down.
TIMEOUT_S = 2.0


class Gateway:
    def __init__(self, source: LeaseSource) -> None:
        self.source = source
        self.limits = Limits(source)

    async def enter(self, who: Caller, tokens: int = 0) -> Ticket | None:
        try:
            return await self.limits.enter(who, "m", tokens)
        except RateLimited:
            return None


@asynccontextmanager
async def gateways(
    server: RedisServer,
    count: int,
    read: Reader | None = None,
    timeout_s: float = TIMEOUT_S,
    lease_s: float = LEASE_S,
) -> AsyncGenerator[list[Gateway]]:
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            source = LeaseSource(Central(server.url, "test", timeout_s, lease_s), read)
            source.start()
            stack.push_async_callback(source.stop)
            opened.append(Gateway(source))
        yield opened


async def eventually(holds: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "limit",
    [
        quota("requests", 50),
        quota("requests", 50, "day"),
        quota("tokens", 5000),
        quota("tokens", 5000, "month"),
        quota("concurrency", 50),
    ],
    ids=lambda limit: f"{limit.measure}-{limit.span}",
)
@pytest.mark.parametrize("count", [1, 3])
async def test_a_crowd_gets_exactly_the_limit(redis_server: RedisServer, count: int, limit: Quota) -> None:
    who = caller(limit)
    async with gateways(redis_server, count, lease_s=LONG_LEASE_S) as opened:
        # Some slices lie about, drawn ahead where nobody will need them.
        for gateway in opened:
            ticket = await gateway.enter(who, 100)
            assert ticket
            ticket.leave(0, 0)
        entered = await asyncio.gather(*(opened[i % count].enter(who, 100) for i in range(200)))
        assert sum(ticket is not None for ticket in entered) == 50
        for ticket in entered:
            if ticket:
                ticket.leave(0, 0)

        async def is_all_back() -> bool:
            """All failed: everything is there again."""
            entered = await asyncio.gather(*(opened[0].enter(who, 100) for _ in range(60)))
            tickets = [ticket for ticket in entered if ticket]
            assert len(tickets) <= 50
            for ticket in tickets:
                ticket.leave(0, 0)
            return len(tickets) == 50

        await eventually(is_all_back)


async def test_the_way_in_does_not_wait_while_a_slice_lasts(redis_server: RedisServer) -> None:
    who = caller(quota("requests", 10_000), quota("tokens", 1_000_000), quota("concurrency", 100))
    async with gateways(redis_server, 1) as (gateway,):
        ticket = await gateway.enter(who, 100)
        assert ticket
        redis_server.pause()
        try:
            entering = gateway.limits.enter(who, "m", 100)
            with pytest.raises(StopIteration):  # It ran to its end without once giving the loop back.
                entering.send(None)
        finally:
            redis_server.resume()
        ticket.leave(10, 0)


async def test_what_was_used_stays_used_and_the_rest_comes_back(redis_server: RedisServer) -> None:
    who = caller(quota("tokens", 1000, "day"), quota("spend", 1000, "month"))
    async with gateways(redis_server, 2) as (one, other):
        ticket = await one.enter(who, 900)
        assert ticket
        await ticket.reserve_spend(900)
        assert not await other.enter(who, 200)
        ticket.leave(300, 100)
        taken: list[Ticket] = []

        async def is_back() -> bool:
            if ticket := await other.enter(who, 700):
                try:
                    await ticket.reserve_spend(900)
                except BudgetExceeded:
                    ticket.leave(0, 0)
                else:
                    taken.append(ticket)
            return bool(taken)

        await eventually(is_back)
        [ticket] = taken
        assert not await one.enter(who, 1)
        with pytest.raises(BudgetExceeded):
            await ticket.reserve_spend(1)


async def test_a_process_that_ends_gives_back_and_one_that_dies_does_so_when_its_lease_ends(
    redis_server: RedisServer,
) -> None:
    who = caller(quota("concurrency", 10))
    async with gateways(redis_server, 1) as (survivor,):
        async with gateways(redis_server, 1) as (orderly,):
            assert await orderly.enter(who)
        assert len(await _enter_all(survivor, who, 10)) == 9


async def test_a_dead_process_has_its_lease_no_longer_than_it_lasts(redis_server: RedisServer) -> None:
    spent = {"requests": 7, "spend": 300}
    who = caller(quota("concurrency", 10), quota("requests", 100, "day"), quota("spend", 1000, "month"))

    def read(key: CounterKey, since_s: int, _: int | None) -> int:
        return spent[key.measure]

    async with gateways(redis_server, 1, read, lease_s=DEAD_LEASE_S) as (survivor,):
        dead = LeaseSource(Central(redis_server.url, "test", TIMEOUT_S, DEAD_LEASE_S), read)
        dead.start()
        for _ in range(6):
            ticket = await Limits(dead).enter(who, "m", 0)
            await ticket.reserve_spend(100)
        await asyncio.sleep(0.3)  # The requests are reported; the money is under way.
        for task in dead._tasks:
            task.cancel()
        await asyncio.gather(*dead._tasks, return_exceptions=True)
        await dead._central.close()
        ticket = await survivor.limits.enter(who, "m", 0)
        with pytest.raises(BudgetExceeded):
            await ticket.reserve_spend(101)
        spent["spend"] = 500  # Two of the six were booked.

        async def all_is_back() -> bool:
            try:
                await ticket.reserve_spend(500)
            except BudgetExceeded:
                return False
            return True

        before = await _enter_all(survivor, who, 9)
        assert len(before) == 3  # Six of the ten places are the dead one's, and one is the ticket's.
        await asyncio.sleep(DEAD_LEASE_S)
        assert len(await _enter_all(survivor, who, 9)) == 6
        await eventually(all_is_back)
        with pytest.raises(BudgetExceeded):
            await ticket.reserve_spend(1)


@pytest.mark.parametrize("failure", ["killed", "hangs"])
async def test_without_redis_requests_go_on_money_does_not_and_all_is_well_again(
    redis_server: RedisServer, failure: str
) -> None:
    who = caller(quota("requests", 1000, "day"), quota("concurrency", 10), quota("spend", 10**6, "month"))
    async with gateways(redis_server, 2, lambda *_: 0, timeout_s=TIMEOUT_S) as (one, other):
        ticket = await one.limits.enter(who, "m", 0)
        await ticket.reserve_spend(1)
        other_ticket = await other.limits.enter(who, "m", 0)
        other_ticket.leave(0, 0)
        await eventually(lambda: _holds(one.source._standing.processes == 2))
        if failure == "killed":
            redis_server.kill()
        else:
            redis_server.pause()
        await eventually(lambda: _holds(one.source.is_down))
        await asyncio.sleep(LEASE_S)  # Slices have ended.
        # Half of the places: the other process has the other half.
        entered = [_without_waiting(one.enter(who)) for _ in range(10)]
        assert sum(entry is not None for entry in entered) == 4
        with pytest.raises(BudgetUnavailable):
            _without_waiting(ticket.reserve_spend(1))
        if failure == "killed":
            redis_server.start()
        else:
            redis_server.resume()

        async def spends() -> bool:
            try:
                await ticket.reserve_spend(1)
            except BudgetUnavailable:
                return False
            return True

        await eventually(spends)

        async def is_shared() -> bool:
            entered = await _enter_all(other, who, 10)
            for each in entered:
                each.leave(0, 0)
            return not other.source.is_down and len(entered) == 5

        await eventually(is_shared)


async def test_a_gateway_starts_without_redis(redis_server: RedisServer) -> None:
    redis_server.kill()
    who = caller(quota("requests", 3), quota("spend", 10, "day"))
    async with gateways(redis_server, 1) as (gateway,):
        assert len(await _enter_all(gateway, who, 5)) == 3
        await asyncio.sleep(0.5)
        redis_server.start()

        async def is_up() -> bool:
            return not gateway.source.is_down

        await eventually(is_up)
        # What was served meanwhile counts.
        assert not await gateway.enter(who)


async def test_when_redis_forgets_the_ledger_remembers(redis_server: RedisServer) -> None:
    who = caller(quota("spend", 100, "month"), quota("requests", 50, "day"))
    async with gateways(redis_server, 1, lambda *_: 40) as (gateway,):
        ticket = await gateway.limits.enter(who, "m", 0)
        await ticket.reserve_spend(60)
        ticket.leave(1, 60)
        await asyncio.sleep(1.0)
        with redis_server.client() as client:
            client.flushall()
        await asyncio.sleep(1.0)
        assert len(await _enter_all(gateway, who, 20)) <= 10
        ticket = await gateway.limits.enter(caller(quota("spend", 100, "month"), key_id="b"), "m", 0)
        with pytest.raises(BudgetExceeded):
            await ticket.reserve_spend(61)


async def test_what_the_ledger_knows_before_redis_does_counts_once(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Redis lost everything, one process reads the ledger when another has not reported its last request."""
    spent, who = [0], caller(quota("spend", 100, "month"))
    reads: list[int] = []

    def read(*_: object) -> int:
        reads.append(spent[0])
        return spent[0]

    async with gateways(redis_server, 2, read, lease_s=LONG_LEASE_S) as (one, two):
        for gateway in (one, two):
            await _spend(gateway, who, 10, spent)
        before = one.source._standing.generation
        with redis_server.client() as client:
            client.flushall()
        await eventually(lambda: _are_open_again(before, one, two))
        two_tells = _silence(two, monkeypatch)
        one_tells = await _spend(one, who, 10, spent, lambda: _silence(one, monkeypatch))
        served = asyncio.create_task(_spend(two, who, 10, spent))
        await eventually(lambda: _holds(reads[-1] == 30))
        two_tells.set()
        await asyncio.wait([served], timeout=0.5)
        one_tells.set()
        await served
        for gateway in (one, two) * 3:
            await _spend(gateway, who, 10, spent)
    assert spent == [100]


async def test_requests_under_way_when_redis_forgets_count_once(redis_server: RedisServer) -> None:
    """They end long after, and before anybody asks again."""
    ended, who = [0], caller(quota("requests", 10, "day"))
    async with gateways(redis_server, 2, lambda *_: ended[0], lease_s=LONG_LEASE_S) as (one, two):
        under_way = [await gateway.limits.enter(who, "m", 0) for gateway in (one, two) * 2]
        before = one.source._standing.generation
        with redis_server.client() as client:
            client.flushall()
        counters = [gateway.source.counter(who.quotas[0]) for gateway in (one, two)]
        await eventually(lambda: _are_open_again(before, one, two))
        await eventually(lambda: _holds(not any(counter.wants_ledger for counter in counters)))
        for ticket in under_way:
            ended[0] += 1
            ticket.leave(1, 0)
        entered = [await gateway.enter(who) for gateway in (one, two) * 5]
        assert sum(ticket is not None for ticket in entered) == 6


def _without_waiting(call: Coroutine[Any, Any, Any]) -> Any:
    """Return its result. It waits neither for Redis nor for the ledger."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    call.close()
    raise AssertionError("it waits")


async def _holds(condition: bool) -> bool:
    return condition


async def _are_open_again(before: str, *all_of_them: Gateway) -> bool:
    sources = [gateway.source for gateway in all_of_them]
    return all(source._is_open and source._standing.generation != before for source in sources)


def _silence(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Its process begins no further exchange until this is set."""
    ended, exchange = asyncio.Event(), gateway.source._exchange

    async def later() -> None:
        await ended.wait()
        await exchange()

    monkeypatch.setattr(gateway.source, "_exchange", later)
    return ended


async def _spend(
    gateway: Gateway,
    who: Caller,
    amount: int,
    spent: list[int],
    silence: Callable[[], asyncio.Event] = asyncio.Event,
) -> asyncio.Event:
    """One request, which is in the ledger as soon as it ends, and before Redis knows of it after a `silence`."""
    ticket = await gateway.limits.enter(who, "m", 0)
    await ticket.reserve_spend(amount)
    silent = silence()
    spent[0] += amount
    ticket.leave(1, amount)
    return silent


async def test_a_counter_is_kept_until_redis_knows_that_nothing_is_lent() -> None:
    counter = LeasedCounter(quota("spend", 1000, "month"), "counter")
    drawn = Grant(True, 350, 650, 0, False, LEASE_S, 0.0, 0.0, 0.0)
    counter.ask(300)
    asked = counter.order(0.0)
    assert asked
    counter.accept(asked, drawn, 0.0, 0.0)
    counter.left, counter.taken = 50, 300
    told = counter.order(0.1)
    assert told
    counter.accept(told, replace(drawn, granted=0), 0.1, 0.1)
    # Nobody answers: the slice ends, and Redis has it still, with what was spent of it.
    orders = [counter.order(float(second)) for second in range(1, 60)]
    assert not counter.is_blank(60.0)
    assert orders[-1]
    assert (orders[-1].idle, orders[-1].held) == (0, 0)
    counter.accept(orders[-1], replace(drawn, granted=0), 60.0, 60.0)
    assert counter.is_blank(60.0 + LEASE_S)


async def test_what_redis_does_not_know_is_not_taken_for_nothing() -> None:
    """It rebuilds its counters, then falls silent: the process goes on with its share, and with each part once."""
    counter = LeasedCounter(quota("requests", 100, "day"), "counter")
    counter.ask(10)
    asked = counter.order(0.0)
    assert asked
    counter.accept(asked, Grant(True, 10, 90, 0, False, LEASE_S, 0.0, 0.0, 0.0), 0.0, 0.0)
    counter.forget()
    counter.know_ledger(0, 0.1)
    told = counter.order(0.2)
    assert told
    rebuilding = Grant(False, 0, 0, 0, True, LEASE_S, 0.0, 0.0, 0.0)
    counter.accept(told, rebuilding, 0.2, 0.2, is_open=False)
    counter.go_alone(0.3, 1000.0, 2)
    assert counter.left == 45
    counter.left -= 30
    told = counter.order(0.4)
    assert told
    counter.accept(told, rebuilding, 0.4, 0.4, is_open=False)
    counter.go_alone(0.5, 1000.0, 2)
    assert counter.left == 15
    counter.forget()
    counter.go_alone(0.6, 1000.0, 2)
    assert counter.left == 15


async def test_an_old_report_that_comes_late_changes_nothing(redis_server: RedisServer) -> None:
    central = Central(redis_server.url, "test", TIMEOUT_S, LEASE_S)
    counter = LeasedCounter(quota("tokens", 100, "day"), "counter")
    counter.ask(50)
    counter.taken = 20
    counter.ledger = 0
    order = counter.order(0.0)
    assert order
    known = await _known(central)
    try:
        for taken in (20, 10):
            await central.exchange([(counter, replace(order, taken=taken))], time.time(), known)
        with redis_server.client() as client:
            assert int(client.hget("counter", "u")) == 20
            assert client.hget("counter", f"l:{central.process}").split()[2] == b"20"
    finally:
        await central.close()


async def test_a_ledger_that_fails_as_nobody_expected_is_asked_again(redis_server: RedisServer) -> None:
    asked: list[CounterKey] = []

    def read(key: CounterKey, since_s: int, _: int | None) -> int:
        asked.append(key)
        if len(asked) == 1:
            raise ValueError
        return 40

    async with gateways(redis_server, 1, read) as (gateway,):
        ticket = await gateway.limits.enter(caller(quota("spend", 100, "month")), "m", 0)
        with pytest.raises(BudgetUnavailable):
            await ticket.reserve_spend(60)

        async def spends() -> bool:
            try:
                await ticket.reserve_spend(60)
            except BudgetUnavailable:
                return False
            return True

        await eventually(spends)


async def _known(central: Central) -> CounterStanding:
    """As of a process that has seen the counters that there are."""
    return CounterStanding((await central.exchange([], time.time(), CounterStanding())).generation)


async def _enter_all(gateway: Gateway, who: Caller, count: int) -> list[Ticket]:
    entered = await asyncio.gather(*(gateway.enter(who) for _ in range(count)))
    return [ticket for ticket in entered if ticket]


async def test_a_minute_is_any_sixty_seconds_for_all_of_them(redis_server: RedisServer) -> None:
    limit = quota("requests", 5)
    async with gateways(redis_server, 1) as (gateway,):
        counter = gateway.source.counter(limit)
        with redis_server.client() as client:
            second = int(client.time()[0])
            client.hset(counter.name, f"b:{second - 55}", 4)
            client.hset(counter.name, f"b:{second - 20}", 1)
        with pytest.raises(RateLimited) as refused:
            await gateway.limits.enter(caller(limit), "m", 0)
        retry_after_s = refused.value.retry_after_s or 0
        assert 1 <= retry_after_s <= 6
        await asyncio.sleep(retry_after_s)
        assert len(await _enter_all(gateway, caller(limit), 9)) == 4


@pytest.mark.parametrize("span", ["minute", "day"])
async def test_a_report_whose_answer_is_lost_counts_once(redis_server: RedisServer, span: Span) -> None:
    """The last of a lease was used: nothing is lent any more, and nobody but Redis knows that it was told."""
    central = Central(redis_server.url, "test", TIMEOUT_S, LEASE_S)
    limit = quota("tokens", 100, span)
    counter = LeasedCounter(limit, central.name(CounterKey.of(limit)))

    async def say(**changes: int) -> Grant:
        fields: dict[str, Any] = dict.fromkeys(Order.__dataclass_fields__, 0) | {"amount": 100, "ledger": -1}
        answer = await central.exchange([(counter, Order(**fields | changes))], time.time(), known)
        return answer.grants[0]

    known = await _known(central)

    assert (await say(need=40, least=40, ledger=0)).granted == 40
    for _ in range(2):  # the first answer never came
        assert (await say(taken=40)).available == 60
    assert (await say(taken=40, taken_before=40)).available == 60
    # Some of it came to nothing after all.
    for _ in range(2):
        assert (await say(taken=40, untaken=10, taken_before=40)).available == 70
    await central.close()


@pytest.mark.parametrize("span", ["minute", "day"])
async def test_a_sweep_forgets_nothing_that_redis_remembers(redis_server: RedisServer, span: Span) -> None:
    who = caller(quota("requests", 10, span))
    async with gateways(redis_server, 1) as (gateway,):
        for ticket in await _enter_all(gateway, who, 5):
            ticket.leave(1, 0)
        counter = gateway.source.counter(who.quotas[0])

        async def is_over() -> bool:
            return counter.is_blank(gateway.source.clock())

        await eventually(is_over)
        gateway.source.sweep()
        again = [await gateway.enter(who) for _ in range(10)]
        assert len([ticket for ticket in again if ticket]) == 5
