"""The rules of limits that one process keeps, against models that remember everything."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.limits.counters import CounterKey, counter_for
from gateway.limits.limits import Limits
from gateway.limits.local import LocalSource
from gateway.limits.plans import Plans
from gateway.limits.ticket import Ticket
from gateway.limits.windows import boundaries, window
from gateway.quota import Measure, Quota, Span
from tests.gateway.limits.callers import caller, quota

SPANS: tuple[Span, ...] = ("minute", "day", "month")
SECONDS = st.floats(0, 4e9)


@given(st.sampled_from(SPANS), SECONDS)
def test_windows_are_the_calendars(span: Span, at_s: float) -> None:
    begin_s, end_s = window(span, at_s)
    assert begin_s <= at_s < end_s
    first, after = datetime.fromtimestamp(begin_s, UTC), datetime.fromtimestamp(end_s, UTC)
    assert (first.hour, first.minute, first.second) == (first.hour if span == "minute" else 0, first.minute, 0)
    if span == "month":
        assert first.day == after.day == 1
        assert (after.year * 12 + after.month) - (first.year * 12 + first.month) == 1
    assert boundaries(span, at_s)[1:3] == (begin_s, end_s)
    assert window(span, boundaries(span, at_s)[0])[1] == begin_s
    assert window(span, end_s)[1] == boundaries(span, at_s)[3]


class _Request:
    def __init__(self, ticket: Ticket, entered_s: float, tokens: int, spend: int) -> None:
        self.ticket, self.entered_s, self.tokens, self.spend = ticket, entered_s, tokens, spend


class LimitsMachine(RuleBasedStateMachine):
    """Requests come, end and fail while time passes; the model keeps a list of all that ever happened."""

    QUOTAS = (
        quota("requests", 5),
        quota("requests", 12, "day", scope="user:ann"),
        quota("tokens", 40),
        quota("tokens", 90, "day", scope="organization:home"),
        quota("concurrency", 3),
        quota("spend", 50, "month", scope="user:ann"),
    )

    @initialize(at_s=st.floats(1e9, 2e9))
    def begin(self, at_s: float) -> None:
        # Often close to the end of a day, and now and then of a month.
        self.now_s = window("day", at_s)[1] - 30.0
        self.plan = Plans(lambda wanted: counter_for(wanted, self.now_s)).of(caller(*self.QUOTAS), "m")
        self.open: list[_Request] = []
        self.requests: list[float] = []
        self.used: dict[Measure, list[tuple[float, int]]] = {"tokens": [], "spend": []}

    def _left(self, measure: Measure, span: Span | None, amount: int) -> int:
        if measure == "concurrency":
            return amount - len(self.open)
        if measure == "requests":
            events, held = [(at_s, 1) for at_s in self.requests], 0
        else:
            events = self.used[measure]
            held = sum(request.tokens if measure == "tokens" else request.spend for request in self.open)
        # What falls into a second counts until the 61st second after it begins.
        since_s = int(self.now_s) - 60 if span == "minute" else window(span or "day", self.now_s)[0]
        return amount - held - sum(used for at_s, used in events if at_s >= since_s)

    def _least(self, *measures: Measure) -> int:
        return min(self._left(q.measure, q.span, q.amount) for q in self.QUOTAS if q.measure in measures)

    @rule(tokens=st.integers(0, 45))
    def enter(self, tokens: int) -> None:
        fits = self._least("requests", "concurrency") >= 1 and self._least("tokens") >= tokens
        assert self.plan.take(tokens, self.now_s) == fits
        if fits:
            ticket = Ticket(self.plan, tokens, self.now_s, lambda: self.now_s, None)  # type: ignore[arg-type]
            self.open.append(_Request(ticket, self.now_s, tokens, 0))
            self.requests.append(self.now_s)

    @rule(amount=st.integers(1, 30))
    def spend(self, amount: int) -> None:
        if not self.open:
            return
        fits = self._least("spend") >= amount
        assert self.plan.take_spend(amount, self.now_s) == fits
        if fits:
            self.open[0].spend += amount
            self.open[0].ticket.spend_nano += amount

    @rule(which=st.integers(0, 2), tokens=st.integers(0, 60), share=st.integers(0, 2))
    def leave(self, which: int, tokens: int, share: int) -> None:
        if not self.open:
            return
        request = self.open.pop(which % len(self.open))
        spent = request.spend * share // 2
        request.ticket.leave(tokens, spent)
        request.ticket.leave(tokens, spent)  # A second time changes nothing.
        self.used["tokens"].append((self.now_s, tokens))
        self.used["spend"].append((self.now_s, spent))
        if not tokens and not spent:
            self.requests.remove(request.entered_s)

    @rule(seconds=st.sampled_from([0.1, 0.9, 1.0, 7.3, 29.9, 59.0, 61.0, 3600.0, 86_400.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def never_more_than_the_limit(self) -> None:
        if not hasattr(self, "requests"):
            return
        last_minute = [at_s for at_s in self.requests if at_s > self.now_s - 60]
        assert len(last_minute) <= 5
        assert len(self.open) <= 3


TestLimits = LimitsMachine.TestCase


@pytest.mark.parametrize("span", ["minute", "day", "month"])
def test_what_was_refused_is_served_after_retry_after(span: Span) -> None:
    now_s = window(span, 1.75e9)[1] - 10.5
    counter = counter_for(quota("requests", 3, span), now_s)
    counter.left -= 3
    counter.taken += 3
    room_s = counter.room_s(1, now_s)
    for at_s, left in ((now_s + room_s - 0.01, 0), (now_s + room_s, 3)):
        if at_s >= counter.ends_s:
            counter.roll(at_s)
        assert counter.left == left
    if span == "minute":
        # Any minute, not the calendar's: the end of one and the begin of the next do not add up.
        assert 60 <= room_s <= 61
    else:
        assert room_s == 10.5


def test_a_plan_has_what_concerns_the_model_and_the_lowest_of_each() -> None:
    made: list[CounterKey] = []

    def counter(wanted: Quota) -> object:
        made.append(CounterKey.of(wanted))
        return counter_for(wanted, 0.0)

    plans = Plans(counter)  # type: ignore[arg-type]
    who = caller(quota("requests", 9), quota("requests", 5), quota("requests", 2, model="big"))
    assert [have.amount for have in plans.of(who, "small").requests] == [5]
    assert sorted(have.amount for have in plans.of(who, "big").requests) == [2, 5]
    again = caller(quota("requests", 9), quota("requests", 5), quota("requests", 2, model="big"))
    assert plans.of(again, "small") is plans.of(who, "small")
    assert len(made) == 2


def test_a_changed_limit_counts_what_was_used() -> None:
    now_s = 1.75e9
    source = LocalSource(None, lambda: now_s)
    limits = Limits(source)
    plan = limits.plans.of(caller(quota("tokens", 100)), "m")
    assert plan.take(60, now_s)
    lowered = limits.plans.of(caller(quota("tokens", 50)), "m")
    assert lowered.tokens[0] is plan.tokens[0]
    assert not lowered.take(1, now_s)
    assert limits.plans.of(caller(quota("tokens", 70)), "m").take(10, now_s)
