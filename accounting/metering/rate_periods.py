"""Find which rate of own machines applies to which usage rows: each version of a rate has its period."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, select

from accounting.ledger.balances import Reader
from accounting.metering.own_cost import ANY_MACHINE
from accounting.metering.tables import price_table, version_table
from accounting.tables import usage_table

PERIODS_MAX = 200
"""Most periods: each is a column of a query. If there are more, only the newest are read."""


@dataclass(frozen=True, slots=True)
class RatePeriod:
    """`rate_nano`, in nano-USD per unit of compute, applies to the rows that match `applies`."""

    rate_nano: int
    applies: ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class _RateVersion:
    lane: str
    name: str
    from_ns: int
    until_ns: int
    rate_nano: int


def rate_periods(reader: Reader, since_ns: int, until_ns: int) -> list[RatePeriod]:
    """Return the rates that were valid at some time from `since_ns` to before `until_ns`."""
    versions = _versions(reader, until_ns)
    named = {(each.lane, each.name) for each in versions if each.name != ANY_MACHINE}
    valid = [each for each in versions if each.until_ns > since_ns and each.from_ns < each.until_ns]
    return [RatePeriod(each.rate_nano, _applies(each, named)) for each in valid[-PERIODS_MAX:]]


def _versions(reader: Reader, until_ns: int) -> list[_RateVersion]:
    """Return the versions, oldest first. Each ends where the next of its lane and name begins."""
    version = version_table.c
    joined = version_table.join(price_table, price_table.c.id == version.price_id)
    query = (
        select(version.lane, version.name, version.valid_from_ns, price_table.c.compute_nano)
        .select_from(joined)
        .where(price_table.c.compute_nano.is_not(None), version.valid_from_ns < until_ns)
        .order_by(version.valid_from_ns.desc())
    )
    ends: dict[tuple[str, str], int] = {}
    found = []
    for lane, name, from_ns, rate_nano in reader.execute(query):
        found.append(_RateVersion(lane, name, from_ns, ends.get((lane, name), until_ns), rate_nano))
        ends[lane, name] = from_ns
    return found[::-1]


def _applies(version: _RateVersion, named: set[tuple[str, str]]) -> ColumnElement[bool]:
    """Return the condition for a version's rows. A machine's own rate precedes its lane's."""
    row = usage_table.c
    conditions = [row.lane == version.lane, row.started_ns >= version.from_ns, row.started_ns < version.until_ns]
    if version.name != ANY_MACHINE:
        return and_(*conditions, row.provider == version.name)
    others = [name for lane, name in named if lane == version.lane]
    return and_(*conditions, row.provider.not_in(others)) if others else and_(*conditions)
