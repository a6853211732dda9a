"""Limits of a gateway that is alone: what callers are told, and what is known from before the start."""

import asyncio
import threading
import time
from typing import Any

import pytest

from gateway.errors import BudgetUnavailable, to_api_error
from gateway.limits import lookups
from gateway.limits.counters import CounterKey
from gateway.limits.limits import Limits
from gateway.limits.local import LocalSource
from gateway.limits.ticket import Ticket
from gateway.limits.windows import window
from gateway.quota import Quota
from runtime.errors import BudgetExceeded, RateLimited
from tests.gateway.limits.callers import caller, quota

pytestmark = pytest.mark.anyio

NOON_S = 1_795_262_400.0


def alone(read: Any = None) -> Limits:
    return Limits(LocalSource(read, lambda: NOON_S))


@pytest.mark.parametrize(
    ("limit", "tokens", "words", "retry_after_s"),
    [
        (quota("requests", 1), 0, "1 requests a minute for this key", 61),
        (quota("requests", 1, "day", scope="user:ann"), 0, "1 requests a day for the user 'ann'", 43_200),
        (quota("tokens", 9, model="m", scope="organization:lab"), 9, "'lab' and the model 'm'", 1),
        (quota("concurrency", 1), 0, "1 requests at a time", 1),
    ],
)
async def test_a_refusal_names_the_limit_and_the_time(
    limit: Quota, tokens: int, words: str, retry_after_s: int
) -> None:
    limits = alone()
    await limits.enter(caller(limit), "m", tokens)
    with pytest.raises(RateLimited, match=words) as refused:
        await limits.enter(caller(limit), "m", tokens)
    answer = to_api_error(refused.value)
    assert (answer.status, answer.code) == (429, "rate_limit_exceeded")
    assert answer.headers[0] == (b"retry-after", b"%d" % retry_after_s)
    told = dict(answer.headers[1:])
    if limit.measure == "concurrency":
        assert told == {}
    else:
        name = limit.measure.encode()
        assert told[b"x-ratelimit-remaining-" + name] == b"0"
        assert told[b"x-ratelimit-limit-" + name] == b"%d" % limit.amount
        assert told[b"x-ratelimit-reset-" + name]
    assert limits.refusals[limit.measure] == 1


async def test_a_request_larger_than_the_limit_is_told_so_at_once() -> None:
    with pytest.raises(RateLimited, match="more than the whole limit of 100 tokens a minute") as refused:
        await alone().enter(caller(quota("tokens", 100)), "m", 101)
    assert to_api_error(refused.value).headers == ()


async def test_a_budget_is_reserved_and_trued_up() -> None:
    limits, who = alone(), caller(quota("spend", 2_500_000_000, "month"))
    ticket, other = await limits.enter(who, "m", 10), await limits.enter(who, "m", 10)
    await ticket.reserve_spend(2_000_000_000)
    with pytest.raises(BudgetExceeded, match=r"2\.5 USD a month") as refused:
        await other.reserve_spend(1_000_000_000)
    assert to_api_error(refused.value).status == 402
    ticket.leave(10, 1_000_000_000)
    await other.reserve_spend(1_500_000_000)
    other.leave(0, 0)
    assert limits.plans.of(who, "m").spend[0].left == 1_500_000_000


async def test_headers_say_what_is_left() -> None:
    limits, who = alone(), caller(quota("requests", 3), quota("requests", 2, "day"), quota("tokens", 100))
    ticket = await limits.enter(who, "m", 30)
    assert dict(ticket.headers()) == {
        b"x-ratelimit-limit-requests": b"2",
        b"x-ratelimit-remaining-requests": b"1",
        b"x-ratelimit-reset-requests": b"12h0m0s",
        b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"70",
        b"x-ratelimit-reset-tokens": b"1m1s",
    }


async def test_counters_begin_with_what_the_ledger_has() -> None:
    asked: list[tuple[CounterKey, int]] = []

    def read(key: CounterKey, since_s: int, _: int | None) -> int:
        asked.append((key, since_s))
        time.sleep(0.05)
        return 4

    limits, who = alone(read), caller(quota("requests", 10, "day"), quota("spend", 10, "month"))
    entered = await asyncio.gather(*(limits.enter(who, "m", 0) for _ in range(12)), return_exceptions=True)
    assert sum(isinstance(ticket, RateLimited) for ticket in entered) == 6
    ticket = next(ticket for ticket in entered if not isinstance(ticket, BaseException))
    with pytest.raises(BudgetExceeded):
        await ticket.reserve_spend(7)
    assert [since_s for _, since_s in asked] == [window("day", NOON_S)[0], window("month", NOON_S)[0]]


async def test_without_the_ledger_requests_go_on_and_money_does_not() -> None:
    def read(key: CounterKey, since_s: int, _: int | None) -> int:
        raise OSError

    limits, who = alone(read), caller(quota("requests", 10, "day"), quota("spend", 10, "month"))
    ticket = await limits.enter(who, "m", 0)
    with pytest.raises(BudgetUnavailable) as refused:
        await ticket.reserve_spend(1)
    assert to_api_error(refused.value).status == 503


async def test_a_ledger_that_hangs_is_asked_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "PATIENCE_S", 0.2)
    now_s, hang, asked = [NOON_S], threading.Event(), []

    def read(key: CounterKey, since_s: int, _: int | None) -> int:
        asked.append(key)
        hang.wait(60)
        return 4

    limits, who = Limits(LocalSource(read, lambda: now_s[0])), caller(quota("spend", 10, "month"))
    tickets = [await limits.enter(who, "m", 0) for _ in range(8)]
    told = await asyncio.gather(*(ticket.reserve_spend(1) for ticket in tickets), return_exceptions=True)
    assert {type(error) for error in told} == {BudgetUnavailable}
    # A later request does not wait: this one would wait for the whole test.
    monkeypatch.setattr(lookups, "PATIENCE_S", 3600.0)
    with pytest.raises(BudgetUnavailable):
        await tickets[0].reserve_spend(1)
    assert len(asked) == 1
    hang.set()
    while not await _reserves(tickets[0], 6):
        await asyncio.sleep(0.02)


async def test_a_refusal_counts_for_the_limit_that_it_names() -> None:
    limits, who = alone(), caller(quota("requests", 1), quota("tokens", 10, "day"))
    await limits.enter(who, "m", 10)
    with pytest.raises(RateLimited, match="10 tokens a day"):
        await limits.enter(who, "m", 10)
    assert (limits.refusals["tokens"], limits.refusals["requests"]) == (1, 0)


async def test_a_sweep_leaves_what_a_request_under_way_may_spend() -> None:
    limits, who = alone(), caller(quota("spend", 10, "month"))
    ticket = await limits.enter(who, "m", 5)
    if limits._source.sweep():
        limits.plans.forget()
    await ticket.reserve_spend(6)
    ticket.leave(5, 6)
    assert limits.plans.of(who, "m").spend[0].left == 4
    assert limits.plans.of(who, "m").spend[0].tickets == 0


async def test_a_sweep_forgets_no_use() -> None:
    limits, who = alone(), caller(quota("requests", 10, "day"), quota("tokens", 10), quota("concurrency", 2))
    ticket = await limits.enter(who, "m", 5)
    assert not limits._source.sweep()
    ticket.leave(5, 0)
    assert limits._source.sweep()  # The place; what was used stays.
    limits.plans.forget()
    assert [have.left for have in limits.plans.of(who, "m").requests] == [9]
    assert [have.left for have in limits.plans.of(who, "m").tokens] == [5]


async def _reserves(ticket: Ticket, amount_nano: int) -> bool:
    try:
        await ticket.reserve_spend(amount_nano)
    except BudgetUnavailable:
        return False
    return True
