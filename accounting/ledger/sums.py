"""Define the rules about the accounts' totals. Each query returns the places where one is broken."""

from collections.abc import Callable

from sqlalchemy import ColumnElement, case, func, or_, select

from accounting.ledger.scope import Query, Scope
from accounting.tables import account_table, event_table, transfer_table

_GUARDED = ("user:", "pool:", "seller:", "clearing:", "asset:user_recv:", "asset:seller_recv:")

_account, _event, _transfer = account_table.c, event_table.c, transfer_table.c


def unbalanced(_: Scope) -> Query:
    totals = [
        func.sum(total)
        for total in (
            _account.debits_posted,
            _account.credits_posted,
            _account.debits_pending,
            _account.credits_pending,
        )
    ]
    unequal = or_(totals[0] != totals[1], totals[2] != totals[3])
    return select(_account.currency, *totals).group_by(_account.currency).having(unequal)


def unequal_sides(_: Scope) -> Query:
    """Compare assets and expenses with liabilities and income."""
    balance = _account.debits_posted - _account.credits_posted
    have = func.sum(case((_account.kind.in_(("asset", "expense")), balance), else_=0))
    owe = func.sum(case((_account.kind.in_(("liability", "income", "equity")), -balance), else_=0))
    return select(_account.currency, have, owe).group_by(_account.currency).having(have != owe)


def uncharted(_: Scope) -> Query:
    """Find accounts that differ from their code: on the other side of the equation, or no longer guarded."""
    code = _account.code
    kind = case(
        (or_(code.startswith("income:"), code.startswith("cu:supply:")), "income"),
        (or_(code.startswith("expense:"), code.startswith("cu:dept:")), "expense"),
        (code.startswith("asset:"), "asset"),
        else_="liability",
    )
    guarded = or_(*(code.startswith(prefix) for prefix in _GUARDED))
    return select(code, _account.kind).where(or_(_account.kind != kind, _account.guarded != guarded))


def overdrawn(_: Scope) -> Query:
    credit_left = _account.credits_posted - _account.debits_posted - _account.debits_pending
    debit_left = _account.debits_posted - _account.credits_posted - _account.credits_pending
    left = case((_account.normal == "C", credit_left), else_=debit_left)
    return select(_account.code, left).where(_account.guarded, left < 0)


def clearing_not_empty(_: Scope) -> Query:
    left = _account.credits_posted - _account.debits_posted
    return select(_account.code, left).where(_account.code.startswith("clearing:"), left != 0)


def _drift(
    side: ColumnElement[int], posted_total: ColumnElement[int], pending_total: ColumnElement[int]
) -> Callable[[Scope], Query]:
    """Return the check that one side's totals of each account are the sum of its transfers."""

    def query(_: Scope) -> Query:
        held = transfer_table.alias("held")
        posted = case((_transfer.phase.in_(("single", "post")), _transfer.amount), else_=0)
        pending = case(
            (_transfer.phase == "single", 0),
            (_transfer.phase == "pending", _transfer.amount),
            else_=-held.c.amount,
        )
        sums = (
            select(side.label("account_id"), func.sum(posted).label("posted"), func.sum(pending).label("pending"))
            .join(held, held.c.seq == _transfer.pending_seq, isouter=True)
            .group_by(side)
            .subquery()
        )
        summed = (func.coalesce(sums.c.posted, 0), func.coalesce(sums.c.pending, 0))
        return (
            select(_account.code, posted_total, summed[0], pending_total, summed[1])
            .join(sums, sums.c.account_id == _account.id, isouter=True)
            .where(or_(posted_total != summed[0], pending_total != summed[1]))
        )

    return query


drifted_debits = _drift(_transfer.debit, _account.debits_posted, _account.debits_pending)
drifted_credits = _drift(_transfer.credit, _account.credits_posted, _account.credits_pending)


def _gaps(column: ColumnElement[int]) -> Callable[[Scope], Query]:
    """Return the check that numbers run from 1 without gaps. A gap means that someone deleted an event."""
    return lambda _: select(func.count(), func.max(column)).having(func.count() != func.max(column))


event_gaps = _gaps(_event.seq)
transfer_gaps = _gaps(_transfer.seq)
