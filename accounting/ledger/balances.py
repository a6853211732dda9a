"""Read balances and statements of accounts through the given session or connection."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Connection, Row, Select, func, literal, select
from sqlalchemy.orm import Session

from accounting.chart import Currency, Normal, terms_of
from accounting.tables import account_table, event_table, transfer_table

Reader: TypeAlias = Session | Connection

ROWS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Balance:
    """The balance of an account, counted on its normal side, in the currency's unit.

    `held_nano` is what open holds would take. `available_nano` is what may still be spent. Only an account that is
    not guarded can have a negative one.
    """

    code: str
    currency: Currency
    posted_nano: int
    held_nano: int

    @property
    def available_nano(self) -> int:
        return self.posted_nano - self.held_nano


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One transfer as seen from one account. `amount_nano` is positive if the balance grows.

    A `pending` line reports a hold, and a `void` line its release. Neither moves money.
    """

    transfer_seq: int
    event_seq: int
    created_ns: int
    kind: str
    ref: str
    phase: str
    counterpart: str
    amount_nano: int


def balance(reader: Reader, code: str) -> Balance:
    """Return the balance of an account, which is zero if nothing was booked on it yet.

    Raises:
        AccountUnknown: the chart of accounts does not have this code.
    """
    row = reader.execute(select(account_table).where(account_table.c.code == code)).one_or_none()
    return Balance(code, terms_of(code).currency, 0, 0) if row is None else _balance(row)


def available(reader: Reader, codes: Collection[str]) -> dict[str, int]:
    """Return what may still be spent from each of these accounts."""
    rows = reader.execute(select(account_table).where(account_table.c.code.in_(codes)))
    return dict.fromkeys(codes, 0) | {row.code: _balance(row).available_nano for row in rows}


def balances(reader: Reader, prefix: str = "", *, limit: int = 100) -> list[Balance]:
    """Return the accounts whose code begins with a prefix, in the order of their codes; at most `ROWS_MAX`."""
    # Do not use LIKE: on SQLite it ignores case.
    matches = func.substr(account_table.c.code, 1, len(prefix)) == prefix
    query = select(account_table).where(matches).order_by(account_table.c.code).limit(min(limit, ROWS_MAX))
    return [_balance(row) for row in reader.execute(query)]


def _balance(row: Row[*tuple[Any, ...]]) -> Balance:
    if row.normal == "D":
        return Balance(row.code, row.currency, row.debits_posted - row.credits_posted, row.credits_pending)
    return Balance(row.code, row.currency, row.credits_posted - row.debits_posted, row.debits_pending)


def statement(
    reader: Reader, code: str, *, before_seq: int | None = None, limit: int = 100
) -> list[StatementLine]:
    """Return the newest transfers of an account, newest first; at most `ROWS_MAX`.

    For the next page, pass the `transfer_seq` of the last line as `before_seq`.

    Raises:
        AccountUnknown: the chart of accounts does not have this code.
    """
    normal = terms_of(code).normal
    transfer = transfer_table.c
    # Read each side by its own index, and no further than the page: a busy account has millions of transfers.
    debited = _newest(code, transfer.debit, transfer.credit, normal, before_seq, limit).subquery()
    credited = _newest(code, transfer.credit, transfer.debit, normal, before_seq, limit).subquery()
    lines = select(debited).union_all(select(credited)).subquery()
    query = (
        select(
            lines.c.seq,
            lines.c.event_seq,
            event_table.c.created_ns,
            event_table.c.kind,
            event_table.c.ref,
            lines.c.phase,
            account_table.c.code,
            lines.c.amount,
        )
        .join(event_table, event_table.c.seq == lines.c.event_seq)
        .join(account_table, account_table.c.id == lines.c.counterpart)
        .order_by(lines.c.seq.desc())
        .limit(min(limit, ROWS_MAX))
    )
    return [StatementLine(*row) for row in reader.execute(query)]


def _newest(
    code: str,
    side: ColumnElement[int],
    other_side: ColumnElement[int],
    normal: Normal,
    before_seq: int | None,
    limit: int,
) -> Select[*tuple[Any, ...]]:
    transfer = transfer_table.c
    sign = 1 if (side is transfer.debit) == (normal == "D") else -1
    account_id = select(account_table.c.id).where(account_table.c.code == code).scalar_subquery()
    query = select(
        transfer.seq,
        transfer.event_seq,
        transfer.phase,
        other_side.label("counterpart"),
        (transfer.amount * literal(sign)).label("amount"),
    ).where(side == account_id)
    if before_seq is not None:
        query = query.where(transfer.seq < before_seq)
    return query.order_by(transfer.seq.desc()).limit(min(limit, ROWS_MAX))
