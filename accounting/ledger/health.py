"""Whether the books add up: every rule that they must keep, checked, each breach by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Select, Subquery, case, func, literal, or_, select

from accounting.chart import CLEARING_BURST
from accounting.ledger.balances import Reader
from accounting.spending.holds import HOLD_GRACE_NS
from accounting.tables import account_table, event_table, transfer_table, usage_table

_Query: TypeAlias = Select[*tuple[Any, ...]]
_Check: TypeAlias = Callable[[int], _Query]

_SHOWN_MAX = 5
_account, _event, _transfer, _usage = account_table.c, event_table.c, transfer_table.c, usage_table.c


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule, with the first few places where it is broken."""

    rule: str
    where: tuple[str, ...]


def findings(reader: Reader, now_ns: int, *, deep: bool = True) -> list[Finding]:
    """Return every broken rule; an empty list means that the books add up.

    The shallow check reads only the accounts and takes milliseconds. The deep one adds up every transfer ever
    booked: for start-up, now and then, and when something looks wrong. Both must see one moment of the books,
    so give them a session that reads one (`gateway.database.read_sessions`).
    """
    checks = _SHALLOW | _DEEP if deep else _SHALLOW
    found = []
    for rule, query in checks.items():
        rows = reader.execute(query(now_ns).limit(_SHOWN_MAX)).all()
        if rows:
            found.append(Finding(rule, tuple(", ".join(str(value) for value in row) for row in rows)))
    return found


def _unbalanced(_: int) -> _Query:
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


def _overdrawn(_: int) -> _Query:
    credit_left = _account.credits_posted - _account.debits_posted - _account.debits_pending
    debit_left = _account.debits_posted - _account.credits_posted - _account.credits_pending
    left = case((_account.normal == "C", credit_left), else_=debit_left)
    return select(_account.code, left).where(_account.guarded, left < 0)


def _clearing_not_empty(_: int) -> _Query:
    left = _account.credits_posted - _account.debits_posted
    return select(_account.code, left).where(_account.code.startswith("clearing:"), left != 0)


def _drift(
    side: ColumnElement[int], posted_total: ColumnElement[int], pending_total: ColumnElement[int]
) -> _Check:
    """Return the check that one side's totals of each account are the sum of its transfers."""

    def query(_: int) -> _Query:
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


def _gaps(column: ColumnElement[int]) -> _Check:
    """Return the check that numbers run from 1 without gaps: a missing one is an event that somebody took out."""
    return lambda _: select(func.count(), func.max(column)).having(func.count() != func.max(column))


def _overdue_holds(now_ns: int) -> _Query:
    resolution = transfer_table.alias("resolution")
    return (
        select(_event.idem_key, _transfer.expires_ns)
        .join(event_table, _event.seq == _transfer.event_seq)
        .join(resolution, resolution.c.pending_seq == _transfer.seq, isouter=True)
        .where(_transfer.phase == "pending", resolution.c.seq.is_(None))
        .where(_transfer.expires_ns < now_ns - HOLD_GRACE_NS)
    )


def _captures_beyond_holds(_: int) -> _Query:
    hold = event_table.alias("hold")
    held, captured = _amounts("pending"), _amounts("single", "post")
    return (
        select(_event.idem_key, captured.c.amount, held.c.amount)
        .join(hold, hold.c.idem_key == literal("hold:") + _event.ref, isouter=True)
        .join(held, held.c.event_seq == hold.c.seq, isouter=True)
        .join(captured, captured.c.event_seq == _event.seq, isouter=True)
        .where(_event.kind.in_(("capture", "late")))
        .where(or_(held.c.amount.is_(None), captured.c.amount > held.c.amount))
    )


def _usage_beside_captures(_: int) -> _Query:
    captured, charged = _amounts("single", "post"), _charges()
    taken = func.coalesce(captured.c.amount, 0)
    return (
        select(charged.c.request_id, charged.c.amount, taken)
        .join(captured, captured.c.event_seq == charged.c.event_seq, isouter=True)
        .where(charged.c.amount != taken)
    )


def _charges() -> Subquery:
    """Sum, for each event, what its usage rows charge; `request_id` names one of them."""
    amount, request_id = func.sum(_usage.charge_nano), func.min(_usage.request_id)
    return (
        select(_usage.event_seq, amount.label("amount"), request_id.label("request_id"))
        .group_by(_usage.event_seq)
        .subquery()
    )


def _amounts(*phases: str) -> Subquery:
    """Sum, for each event, what it moved or put aside into the clearing account of cloud requests."""
    return (
        select(_transfer.event_seq, func.sum(_transfer.amount).label("amount"))
        .join(account_table, _account.id == _transfer.credit)
        .where(_account.code == CLEARING_BURST, _transfer.phase.in_(phases))
        .group_by(_transfer.event_seq)
        .subquery()
    )


_SHALLOW: dict[str, _Check] = {
    "debits equal credits in each currency": _unbalanced,
    "no guarded account is below zero, holds counted": _overdrawn,
    "clearing accounts are empty between events": _clearing_not_empty,
}

_DEEP: dict[str, _Check] = {
    "debit totals are the sum of transfers": _drift(
        _transfer.debit, _account.debits_posted, _account.debits_pending
    ),
    "credit totals are the sum of transfers": _drift(
        _transfer.credit, _account.credits_posted, _account.credits_pending
    ),
    "events are numbered without gaps": _gaps(_event.seq),
    "transfers are numbered without gaps": _gaps(_transfer.seq),
    "every hold is resolved, or not long expired": _overdue_holds,
    "every capture has its hold and stays within it": _captures_beyond_holds,
    "usage rows charge what was captured": _usage_beside_captures,
}
