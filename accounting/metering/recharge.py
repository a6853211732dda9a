"""Recompute old charges from the price that each row names and the counts in it."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, select

from accounting.errors import AmountInvalid
from accounting.ledger.balances import Reader
from accounting.metering.prices import PricedModel
from accounting.metering.versions import price_of
from accounting.money import Nano
from accounting.tables import usage_table

_ROWS_A_READ = 5_000
_PRICES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Mischarge:
    """A row whose cost differs from its price times its counts. `due_nano` is None if it has no price."""

    request_id: str
    cost_nano: int
    charge_nano: int
    due_nano: int | None


def recharge(usage: Row[Any], priced: PricedModel) -> Nano:
    """Return what a usage row costs by a price, in nano-USD. Raises AmountInvalid."""
    return priced.charge_for(
        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
    )


def mischarges(reader: Reader, *, since_ns: int = 0, limit: int = 100) -> list[Mischarge]:
    """Return rows with a wrong cost, or a charge above their cost; the oldest first.

    A charge may be less than the cost, because it never exceeds the hold. Every row with a cost is checked.
    """
    found: list[Mischarge] = []
    prices: dict[str, PricedModel | None] = {}
    table = usage_table.c
    query = select(usage_table).where(table.cost_nano + table.charge_nano > 0, table.started_ns >= since_ns)
    query = query.order_by(table.started_ns, table.request_id).limit(_ROWS_A_READ)
    last: tuple[int, str] | None = None
    while len(found) < limit:
        page = query
        if last is not None:
            started_ns, request_id = last
            later = (table.started_ns > started_ns) | (
                (table.started_ns == started_ns) & (table.request_id > request_id)
            )
            page = query.where(later)
        rows = reader.execute(page).all()
        for row in rows:
            due_nano = row.cost_nano if _is_of_several(row) else _due_nano(reader, row, prices)
            if due_nano != row.cost_nano or row.charge_nano > row.cost_nano:
                found.append(Mischarge(row.request_id, row.cost_nano, row.charge_nano, due_nano))
        if len(rows) < _ROWS_A_READ:
            break
        last = rows[-1].started_ns, rows[-1].request_id
    return found[:limit]


def _is_of_several(row: Row[Any]) -> bool:
    """Return whether several sellers gave the answer, each at its own price.

    Their receipts then have the amounts.
    """
    return row.lane == "market" and row.price_id is None


def _due_nano(reader: Reader, row: Row[Any], prices: dict[str, PricedModel | None]) -> int | None:
    price_id = row.price_id or ""
    if price_id not in prices:
        if len(prices) >= _PRICES_MAX:
            prices.clear()
        prices[price_id] = price_of(reader, price_id)
    priced = prices[price_id]
    try:
        return None if priced is None else recharge(row, priced)
    except AmountInvalid:
        return None
