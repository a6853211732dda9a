"""Define the rules about events. Each query returns the events that break one.

Each query reads an event's own transfers by the index on `event_seq`. So a check of the newest events costs the
same, however long the ledger is.
"""

from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    FromClause,
    Select,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    or_,
    select,
)
from sqlalchemy.sql.expression import ScalarSelect

from accounting.chart import CLEARING_MARKET, EXPENSE_PROMO, INCOME_BREAKAGE
from accounting.ledger.postings import HOLD_GRACE_NS
from accounting.ledger.scope import Query, Scope
from accounting.tables import account_table, credit_grant_table, event_table, transfer_table, usage_table

_account, _event, _transfer, _usage = account_table.c, event_table.c, transfer_table.c, usage_table.c


def overdue_holds(scope: Scope) -> Query:
    resolution = transfer_table.alias("resolution")
    return (
        select(_event.idem_key, _transfer.expires_ns)
        .join(event_table, _event.seq == _transfer.event_seq)
        .join(resolution, resolution.c.pending_seq == _transfer.seq, isouter=True)
        .where(_transfer.phase == "pending", resolution.c.seq.is_(None))
        .where(_transfer.expires_ns < scope.now_ns - HOLD_GRACE_NS)
    )


def wrong_resolutions(scope: Scope) -> Query:
    """Find wrong resolutions.

    Triggers and an index prevent them; this check notices if someone has bypassed them.
    """
    held, other = transfer_table.alias("held"), transfer_table.alias("other")
    is_other = and_(other.c.pending_seq == _transfer.pending_seq, other.c.seq != _transfer.seq)
    is_wrong = or_(
        held.c.seq.is_(None),
        held.c.phase != "pending",
        held.c.debit != _transfer.debit,
        held.c.credit != _transfer.credit,
        held.c.amount < _transfer.amount,
        exists().where(is_other),
    )
    return (
        select(_transfer.seq, _transfer.pending_seq)
        .join(held, held.c.seq == _transfer.pending_seq, isouter=True)
        .where(_transfer.event_seq > scope.since_seq, _transfer.pending_seq.is_not(None), is_wrong)
    )


def kept_in_clearing(scope: Scope) -> Query:
    # Do not filter on accounts: the database would read every transfer that these accounts ever had.
    change = func.sum(
        case(
            (_transfer.credit.in_(_ids("clearing:")), _transfer.amount),
            (_transfer.debit.in_(_ids("clearing:")), -_transfer.amount),
            else_=0,
        )
    )
    return (
        select(_transfer.event_seq, change)
        .where(_transfer.event_seq > scope.since_seq, _transfer.phase.in_(("single", "post")))
        .group_by(_transfer.event_seq)
        .having(change != 0)
    )


def captures_beyond_holds(scope: Scope) -> Query:
    hold = event_table.alias("hold")
    captured, held = _into_clearing(_event.seq, "single", "post"), _into_clearing(hold.c.seq, "pending")
    return (
        select(_event.idem_key, captured, held)
        .join(hold, hold.c.idem_key == literal("hold:") + _event.ref, isouter=True)
        .where(_event.seq > scope.since_seq, _event.kind.in_(("capture", "late", "purchase", "draw")))
        .where(or_(hold.c.seq.is_(None), captured > held))
    )


def draws_beyond_allocations(scope: Scope) -> Query:
    """Find allocations whose draws, in time or late, add up to more than their hold reserved."""
    hold = event_table.alias("hold")
    draws = _draws_of_those_with_new_ones(scope)
    drawn = (
        select(draws.c.ref, func.sum(_into_clearing(draws.c.seq, "single", "post")).label("amount"))
        .group_by(draws.c.ref)
        .subquery()
    )
    held = _into_clearing(hold.c.seq, "pending")
    return (
        select(hold.c.idem_key, drawn.c.amount, held)
        .join(drawn, hold.c.idem_key == literal("hold:") + drawn.c.ref)
        .where(drawn.c.amount > held)
    )


def _draws_of_those_with_new_ones(scope: Scope) -> CTE:
    """Select all draws on allocations that have new ones. Draws are numbered from 1, so their keys are known."""
    new, first, following = event_table.alias("new"), event_table.alias("first"), event_table.alias("following")
    refs = (
        select(new.c.ref)
        .where(new.c.seq > scope.since_seq, new.c.kind.in_(("draw", "late")))
        .where(new.c.idem_key.startswith("settle:"))
        .distinct()
        .subquery()
    )
    draws = (
        select(refs.c.ref, literal(1).label("number"), first.c.seq)
        .join(first, first.c.idem_key == literal("settle:") + refs.c.ref + literal(":1"))
        .cte("draws", recursive=True)
    )
    next_key = literal("settle:") + draws.c.ref + literal(":") + cast(draws.c.number + 1, Text)
    return draws.union_all(
        select(draws.c.ref, draws.c.number + 1, following.c.seq).join(draws, following.c.idem_key == next_key)
    )


def late_without_reaper(scope: Scope) -> Query:
    reap = event_table.alias("reap")
    return (
        select(_event.idem_key)
        .join(reap, and_(reap.c.idem_key == literal("reap:") + _event.ref, reap.c.seq < _event.seq), isouter=True)
        .where(_event.seq > scope.since_seq, _event.kind == "late", reap.c.seq.is_(None))
    )


def usage_beside_captures(scope: Scope) -> Query:
    charges = (
        select(
            _usage.event_seq,
            func.sum(_usage.charge_nano).label("amount"),
            func.min(_usage.request_id).label("request_id"),
        )
        .where(_usage.event_seq > scope.since_seq)
        .group_by(_usage.event_seq)
        .subquery()
    )
    captured = _into_clearing(charges.c.event_seq, "single", "post")
    return select(charges.c.request_id, charges.c.amount, captured).where(charges.c.amount != captured)


def variances_before_charges(scope: Scope) -> Query:
    """Find variances booked before their request's usage row: a later usage row books the same debt again."""
    return (
        select(_event.idem_key, _usage.cost_nano)
        .join(usage_table, literal("owed:") + _usage.request_id == _event.idem_key)
        .where(_usage.event_seq > scope.since_seq, _usage.event_seq > _event.seq, _usage.cost_nano > 0)
        .where(_event.kind == "variance")
    )


def refunds_beyond_charges(scope: Scope) -> Query:
    """Find refunds above the charge: the request's capture, or its usage row if it was covered by a lease."""
    capture = event_table.alias("capture")
    given = _sum(_event.seq, _transfer.debit.in_(_ids("clearing:")))
    captured = _into_clearing(capture.c.seq, "single", "post")
    charged = case((capture.c.seq.is_(None), func.coalesce(_usage.charge_nano, 0)), else_=captured)
    return (
        select(_event.idem_key, given, charged)
        .join(capture, _is_charge(capture.c.idem_key), isouter=True)
        .join(usage_table, _usage.request_id == _event.ref, isouter=True)
        .where(_event.seq > scope.since_seq, _event.kind == "usage_refund")
        .where(given > charged)
    )


def misdirected_refunds(scope: Scope) -> Query:
    """Find accounts that the refunds of an event's requests gave more than they paid for that event.

    A user's own credits also receive what the user owed then, and what credit grants that have ended had paid.
    """
    capture, payee = event_table.alias("capture"), account_table.alias("payee")
    charge_seq = func.coalesce(capture.c.seq, _usage.event_seq)
    given = _given_to(payee.c.id) + _given_beside(charge_seq, payee.c.id)
    paid = _paid_by(charge_seq, payee, _event.created_ns)
    return (
        select(_event.idem_key, payee.c.code, given, paid)
        .join(transfer_table, _transfer.event_seq == _event.seq)
        .join(payee, payee.c.id == _transfer.credit)
        .join(capture, _is_charge(capture.c.idem_key), isouter=True)
        .join(usage_table, _usage.request_id == _event.ref, isouter=True)
        .where(_event.seq > scope.since_seq, _event.kind == "usage_refund")
        .where(_transfer.debit.in_(_ids("clearing:")), given > paid)
    )


def _is_charge(idem_key: ColumnElement[str]) -> ColumnElement[bool]:
    """Match the key of what a refund gives back: a request's capture, or a draw on an allocation."""
    return idem_key.in_((literal("cap:") + _event.ref, literal("settle:") + _event.ref))


def _given_to(payee_id: ColumnElement[int]) -> ScalarSelect[int]:
    """Sum what a refund gave an account."""
    transfer = transfer_table.alias()
    is_given = and_(transfer.c.credit == payee_id, transfer.c.debit.in_(_ids("clearing:")))
    return (
        select(_total(transfer, is_given))
        .where(transfer.c.event_seq == _event.seq)
        .correlate_except(transfer)
        .scalar_subquery()
    )


def _given_beside(charge_seq: ColumnElement[int], payee_id: ColumnElement[int]) -> ScalarSelect[int]:
    """Sum what refunds of an event's other requests gave an account.

    This is a separate query: combined with the refund's own, PostgreSQL reads all events for each refund.
    """
    transfer, refund, usage = transfer_table.alias(), event_table.alias(), usage_table.alias()
    is_given = and_(transfer.c.credit == payee_id, transfer.c.debit.in_(_ids("clearing:")))
    return (
        select(_total(transfer, is_given))
        .select_from(usage)
        .join(refund, refund.c.idem_key == literal("refund:") + usage.c.request_id)
        .join(transfer, transfer.c.event_seq == refund.c.seq)
        .where(usage.c.event_seq == charge_seq, refund.c.seq != _event.seq)
        .correlate_except(transfer, refund, usage)
        .scalar_subquery()
    )


def _paid_by(charge_seq: ColumnElement[int], payee: Any, refunded_ns: ColumnElement[int]) -> ScalarSelect[int]:
    """Sum what an account paid for an event, and what others paid whose share may be refunded to it."""
    transfer, payer, grant = transfer_table.alias(), account_table.alias(), credit_grant_table.alias()
    user_id = func.substr(payee.c.code, 6, func.length(payee.c.code) - 10)
    is_own = payee.c.code.startswith("user:") & payee.c.code.endswith(":paid")
    ended = (
        select(literal("user:") + grant.c.user_id + literal(":promo:") + grant.c.id)
        .where(grant.c.user_id == user_id, grant.c.expires_ns <= refunded_ns + HOLD_GRACE_NS)
        .correlate_except(grant)
    )
    is_other = or_(payer.c.code == literal("asset:user_recv:") + user_id, payer.c.code.in_(ended))
    is_paid = and_(transfer.c.credit.in_(_ids("clearing:")), transfer.c.phase.in_(("single", "post")))
    return (
        select(_total(transfer, is_paid))
        .join(payer, payer.c.id == transfer.c.debit)
        .where(transfer.c.event_seq == charge_seq, or_(payer.c.id == payee.c.id, and_(is_own, is_other)))
        .correlate_except(transfer, payer)
        .scalar_subquery()
    )


def misused_grants(scope: Scope) -> Query:
    """Find wrong uses of credit grants.

    The grant itself and refunds may credit its account; clearing accounts and its expiry may debit it.

    A correction may do anything, because admins repair mistakes with it.
    """
    grant, other = account_table.alias("grant_account"), account_table.alias("other")
    into = and_(grant.c.id == _transfer.credit, other.c.id == _transfer.debit)
    out_of = and_(grant.c.id == _transfer.debit, other.c.id == _transfer.credit)
    is_grant = and_(into, other.c.code == EXPENSE_PROMO, _event.kind == "promo")
    is_refund = and_(into, other.c.code.startswith("clearing:"), _event.kind == "usage_refund")
    is_expiry = and_(out_of, other.c.code == INCOME_BREAKAGE, _event.kind == "expiry")
    is_spent = and_(out_of, other.c.code.startswith("clearing:"))
    of_grants = _transfer.debit.in_(_grant_accounts()) | _transfer.credit.in_(_grant_accounts())
    return (
        select(_event.idem_key, grant.c.code)
        .select_from(transfer_table)
        .join(event_table, _event.seq == _transfer.event_seq)
        .join(grant, and_(grant.c.id.in_((_transfer.debit, _transfer.credit)), grant.c.id.in_(_grant_accounts())))
        .join(other, and_(other.c.id.in_((_transfer.debit, _transfer.credit)), other.c.id != grant.c.id))
        .where(_transfer.event_seq > scope.since_seq, of_grants)
        .where(_event.kind != "correction", ~or_(is_grant, is_refund, is_expiry, is_spent))
    )


def sold_for_promo(scope: Scope) -> Query:
    return (
        select(_event.idem_key, _account.code)
        .select_from(transfer_table)
        .join(event_table, _event.seq == _transfer.event_seq)
        .join(account_table, _account.id == _transfer.debit)
        .where(_transfer.event_seq > scope.since_seq, _transfer.debit.in_(_grant_accounts()))
        .where(_transfer.credit.in_(_ids(CLEARING_MARKET)))
    )


def late_expiries(scope: Scope) -> Query:
    """Find ended credit grants that still have credits which no open hold keeps."""
    left = _account.credits_posted - _account.debits_posted - _account.debits_pending
    code = literal("user:") + credit_grant_table.c.user_id + literal(":promo:") + credit_grant_table.c.id
    return (
        select(_account.code, credit_grant_table.c.expires_ns, left)
        .join(credit_grant_table, _account.code == code)
        .where(credit_grant_table.c.expires_ns < scope.now_ns - HOLD_GRACE_NS, left > 0)
    )


def _into_clearing(event_seq: ColumnElement[int], *phases: str) -> ScalarSelect[int]:
    """Sum what an event moved, or reserved, into clearing accounts."""
    return _sum(event_seq, _transfer.credit.in_(_ids("clearing:")), _transfer.phase.in_(phases))


def _sum(event_seq: ColumnElement[int], *conditions: ColumnElement[bool]) -> ScalarSelect[int]:
    """Sum the transfers of an event that meet the conditions."""
    return (
        select(_total(transfer_table, *conditions))
        .where(_transfer.event_seq == event_seq)
        .correlate_except(transfer_table)
        .scalar_subquery()
    )


def _total(transfer: FromClause, *conditions: ColumnElement[bool]) -> ColumnElement[int]:
    """Sum the amounts of the transfers that meet the conditions.

    The conditions are inside the sum. In WHERE, the database would read every transfer of a clearing account for
    each event, because it plans with statistics that may be older than most rows.
    """
    return func.coalesce(func.sum(case((and_(*conditions), transfer.c.amount), else_=0)), 0)


def _ids(prefix: str) -> Select[Any]:
    account = account_table.alias()
    return select(account.c.id).where(account.c.code.startswith(prefix))


def _grant_accounts() -> Select[Any]:
    account = account_table.alias()
    return select(account.c.id).where(account.c.code.startswith("user:"), account.c.code.contains(":promo:"))
