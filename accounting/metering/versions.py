"""Keep the price book over time: each price is recorded before it is charged, so old charges can be recomputed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from accounting.ledger.balances import ROWS_MAX, Reader
from accounting.metering.prices import LongContext, PricedModel
from accounting.metering.tables import price_table, version_table
from accounting.money import Price

_TRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """The price of `name` from `from_ns` until the lane's next version of that name."""

    name: str
    from_ns: int
    priced: PricedModel


def record(session: Session, prices: Mapping[str, PricedModel], now_ns: int) -> int:
    """Record what is charged from now on, by name, if it differs from the latest version.

    Return the number of new versions. Several gateways may do this at once. The caller commits the session.
    """
    new = 0
    for name, priced in prices.items():
        latest = version_at(session, priced.lane, name, now_ns)
        if latest is None or latest.priced.id != priced.id:
            _insert(session, name, priced, now_ns)
            new += 1
    return new


def version_at(reader: Reader, lane: str, name: str, at_ns: int) -> PriceVersion | None:
    """Return what a model costs at that time; None before its first version."""
    query = _versions().where(version_table.c.lane == lane, version_table.c.name == name)
    row = reader.execute(
        query.where(version_table.c.valid_from_ns <= at_ns).order_by(version_table.c.valid_from_ns.desc()).limit(1)
    ).first()
    return None if row is None else _version(row)


def versions_of(reader: Reader, name: str, limit: int = ROWS_MAX) -> list[PriceVersion]:
    """Return every version of a name, on any lane, newest first."""
    query = _versions().where(version_table.c.name == name).order_by(version_table.c.valid_from_ns.desc())
    return [_version(row) for row in reader.execute(query.limit(limit))]


def versions_now(reader: Reader, at_ns: int, limit: int = ROWS_MAX) -> list[PriceVersion]:
    """Return what each name costs at that time, by lane and name."""
    key = (version_table.c.lane, version_table.c.name)
    last = (
        select(*key, func.max(version_table.c.valid_from_ns).label("from_ns"))
        .where(version_table.c.valid_from_ns <= at_ns)
        .group_by(*key)
        .subquery()
    )
    query = _versions().join(
        last,
        (last.c.lane == version_table.c.lane)
        & (last.c.name == version_table.c.name)
        & (last.c.from_ns == version_table.c.valid_from_ns),
    )
    return [_version(row) for row in reader.execute(query.order_by(*key).limit(limit))]


def price_of(reader: Reader, price_id: str) -> PricedModel | None:
    """Return the price that a usage row or an event names."""
    row = reader.execute(select(price_table).where(price_table.c.id == price_id)).first()
    return None if row is None else _priced(row, "")


def _insert(session: Session, name: str, priced: PricedModel, now_ns: int) -> None:
    """Insert a version. If another gateway has just inserted the same one, use a later time."""
    for attempt in range(_TRIES_MAX):
        from_ns = now_ns + attempt
        try:
            with session.begin_nested():
                known = select(price_table.c.id).where(price_table.c.id == priced.id)
                if session.scalar(known) is None:
                    session.execute(insert(price_table).values(_price_values(priced)))
                session.execute(
                    insert(version_table).values(
                        lane=priced.lane,
                        name=name,
                        valid_from_ns=from_ns,
                        price_id=priced.id,
                        source=priced.source,
                    )
                )
        except IntegrityError:
            if attempt == _TRIES_MAX - 1:
                raise
        else:
            return


def _price_values(priced: PricedModel) -> dict[str, Any]:
    price, long_context = priced.price, priced.long_context
    values: dict[str, Any] = {
        "id": priced.id,
        "lane": priced.lane,
        "model": priced.model,
        "provider": priced.provider,
        "prompt_nano": price.prompt_nano,
        "cached_nano": price.cached_nano,
        "completion_nano": price.completion_nano,
        "reasoning_nano": price.reasoning_nano,
        "compute_nano": priced.compute_nano,
    }
    if long_context:
        values |= {
            "long_above_tokens": long_context.above_tokens,
            "long_prompt_nano": long_context.price.prompt_nano,
            "long_cached_nano": long_context.price.cached_nano,
            "long_completion_nano": long_context.price.completion_nano,
        }
    return values


def _versions() -> Any:
    columns = [column for column in version_table.c if column.name in ("name", "valid_from_ns", "source")]
    joined = version_table.join(price_table, price_table.c.id == version_table.c.price_id)
    return select(*columns, *price_table.c).select_from(joined)


def _version(row: Row[Any]) -> PriceVersion:
    return PriceVersion(row.name, row.valid_from_ns, _priced(row, row.source))


def _priced(row: Row[Any], source: str) -> PricedModel:
    long_context = None
    if row.long_above_tokens is not None:
        dearer = Price(row.long_prompt_nano, row.long_cached_nano, row.long_completion_nano)
        long_context = LongContext(row.long_above_tokens, dearer)
    return PricedModel(
        lane=row.lane,
        model=row.model,
        source=source,
        price=Price(row.prompt_nano, row.cached_nano, row.completion_nano, row.reasoning_nano),
        provider=row.provider,
        long_context=long_context,
        compute_nano=row.compute_nano,
    )
