"""Tokens and money by day, lane and model from the ledger, cached for a while; past days longer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from sqlalchemy.orm import Session

from accounting.ledger.balances import ROWS_MAX
from accounting.metering.usage import UsageGroup, UsageTotal, usage_totals
from gateway.billing.usage_report import DAY_NS
from gateway.console.pace_limit import Pacing
from gateway.limits.past_use import used_by

DAYS = 30
# Past days change little: a corrected rate, or an answer that was posted late.
_PAST_S = 900.0
_TODAY_S = 10.0
_KEYS_S = 60.0
# All queries together take at most this share of the time.
_SHARE_OF_TIME = 0.01
_ANSWERS_MAX = 200
_PAGES_MAX = 20
_BY_MODEL: tuple[UsageGroup, ...] = ("day", "lane", "model")

T = TypeVar("T")


class Look(Protocol):
    """Query the ledger in a thread. Raises DatabaseFailing."""

    def __call__(self, query: Callable[[Session], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class Row:
    """Usage of one model in one lane on one UTC day, such as `2026-11-21`."""

    day: str
    lane: str
    model: str
    used: UsageTotal


@dataclass(frozen=True, slots=True)
class _Answer:
    """Rows from the ledger, and their time on the monotonic clock."""

    totals: list[UsageTotal]
    at_s: float


class UsageFigures:
    """Usage for pages that query it repeatedly. Belongs to one event loop."""

    def __init__(self, look: Look, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._look = look
        self._clock_ns = clock_ns
        self._answers: dict[_Question, _Answer] = {}
        self._asking: dict[_Question, asyncio.Lock] = {}
        self._pacing = Pacing(_SHARE_OF_TIME)

    async def rows(self, scope: str | None = None, today_s: float = _TODAY_S) -> list[Row]:
        """Return the last `DAYS` days, today last: of a scope as limits name it, or of all.

        Today's rows are less than `today_s` seconds old, or older if the ledger has many. Raises DatabaseFailing.
        """
        day = self._clock_ns() // DAY_NS
        past = await self._totals(_Question(scope, _BY_MODEL, day - DAYS + 1, day), _PAST_S)
        today = await self._totals(_Question(scope, _BY_MODEL, day, day + 1), today_s)
        return [Row(*_three(total.group), total) for total in (*past, *today)]

    async def keys(self, scope: str | None = None) -> list[UsageTotal]:
        """Return each key's usage in these days, some minutes old, most tokens first. Raises DatabaseFailing."""
        day = self._clock_ns() // DAY_NS
        totals = await self._totals(_Question(scope, ("key_id",), day - DAYS + 1, day + 1), _KEYS_S)
        return sorted(totals, key=lambda total: -(total.prompt_tokens + total.completion_tokens))

    async def key_days(self, scope: str | None = None) -> list[UsageTotal]:
        """Return each key's usage on each of these days, some minutes old. Raises DatabaseFailing."""
        day = self._clock_ns() // DAY_NS
        return await self._totals(_Question(scope, ("day", "key_id"), day - DAYS + 1, day + 1), _KEYS_S)

    async def _totals(self, question: "_Question", lasts_s: float) -> list[UsageTotal]:
        lock = self._asking.setdefault(question, asyncio.Lock())
        try:
            async with lock:
                known = self._answers.get(question)
                if known is None or time.monotonic() >= known.at_s + lasts_s * self._pacing.stretch:
                    known = self._answers[question] = await self._ask(question, lasts_s)
        finally:
            if not lock.locked():
                self._asking.pop(question, None)
        while len(self._answers) > _ANSWERS_MAX:
            gone = next(iter(self._answers))
            del self._answers[gone]
            self._pacing.forget(str(gone))
        return known.totals

    async def _ask(self, question: "_Question", lasts_s: float) -> _Answer:
        began_s = time.monotonic()
        totals = await self._look(lambda session: _read(session, question))
        self._pacing.note(str(question), time.monotonic() - began_s, lasts_s)
        return _Answer(totals, began_s)


@dataclass(frozen=True, slots=True)
class _Question:
    """A range of UTC days since the epoch; `until_day` is excluded."""

    scope: str | None
    by: tuple[UsageGroup, ...]
    since_day: int
    until_day: int


def _read(session: Session, question: _Question) -> list[UsageTotal]:
    whose = None if question.scope is None else used_by(question.scope)
    totals: list[UsageTotal] = []
    for number in range(_PAGES_MAX):
        found = usage_totals(
            session,
            question.by,
            since_ns=question.since_day * DAY_NS,
            until_ns=question.until_day * DAY_NS,
            whose=whose,
            offset=number * ROWS_MAX,
        )
        totals += found
        if len(found) < ROWS_MAX:
            break
    return totals


def _three(group: tuple[str, ...]) -> tuple[str, str, str]:
    day, lane, model = group
    return day, lane, model


def day_start_s(day: str) -> int:
    """Return the start of a UTC day, in seconds since the epoch."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())
