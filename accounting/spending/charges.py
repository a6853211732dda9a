"""Read back what the ledger recorded of a request's charge, for a refund."""

from typing import Any

from sqlalchemy import Row, Select, literal, select

from accounting import chart
from accounting.ledger.balances import Reader, available
from accounting.ledger.postings import Leg
from accounting.rules.charged import Charged, RequestCharge, charged, charged_together
from accounting.rules.parts import Share
from accounting.rules.usage_refunds import RefundParties
from accounting.tables import account_table, credit_grant_table, event_table, transfer_table, usage_table

GRANT_LAST_NS = 60 * 10**9
"""Refunds treat grants that end within this many nanoseconds as ended: they will be when it is booked."""


def find_charge(reader: Reader, request_id: str) -> Charged | None:
    """Return the payers and recipients of a request; None if it was not charged or not booked.

    A request with its own hold is found by its capture, others by their usage row. A draw on an allocation is
    found as `<allocation>:<number>`.
    """
    for key in (f"cap:{request_id}", f"settle:{request_id}"):
        if legs := event_legs(reader, key):
            return charged(request_id, legs)
    usage = reader.execute(
        select(usage_table, event_table.c.idem_key)
        .join(event_table, event_table.c.seq == usage_table.c.event_seq)
        .where(usage_table.c.request_id == request_id)
    ).one_or_none()
    if usage is None:
        return None
    before_nano = _charged_before(reader, request_id, usage.event_seq)
    ended = RequestCharge(usage.charge_nano, usage.cost_nano, usage.provider, before_nano)
    return charged_together(request_id, event_legs(reader, usage.idem_key), ended)


def find_refund_parties(reader: Reader, charge: Charged, now_ns: int) -> RefundParties:
    """Return what a refund of this charge could be taken from now, and which of its credit grants have ended."""
    debtor = next((share.account for share in charge.paid if chart.debtor_of(share.account)), None)
    seller: list[str] = []
    if charge.clearing == chart.CLEARING_MARKET:
        name = chart.seller_of(charge.partner)
        seller = [chart.seller_maturing(name), chart.seller_payable(name), chart.seller_reserve(name)]
    has = available(reader, [*seller, *([debtor] if debtor else [])])
    owed_nano = has[debtor] if debtor else 0
    return RefundParties(
        tuple(Share(code, has[code]) for code in seller), owed_nano, _ended_grants(reader, charge, now_ns)
    )


def _ended_grants(reader: Reader, charge: Charged, now_ns: int) -> frozenset[str]:
    grants = [share.account for share in charge.paid if chart.is_promo(share.account)]
    code = literal("user:") + credit_grant_table.c.user_id + literal(":promo:") + credit_grant_table.c.id
    ids = [account.partition(":promo:")[2] for account in grants]
    query = select(code).where(
        credit_grant_table.c.id.in_(ids), credit_grant_table.c.expires_ns <= now_ns + GRANT_LAST_NS
    )
    return frozenset(reader.scalars(query)) if grants else frozenset()


def event_legs(reader: Reader, idem_key: str) -> tuple[Leg, ...]:
    """Return an event's transfers as they were booked; none if there is no such event."""
    rows = reader.execute(_transfers().where(event_table.c.idem_key == idem_key))
    return tuple(_leg(row) for row in rows)


def _charged_before(reader: Reader, request_id: str, event_seq: int) -> int:
    """Sum the charges of an event's requests with smaller ids.

    Python compares the ids, because databases order texts in different ways, which may also change.
    """
    charges = select(usage_table.c.request_id, usage_table.c.charge_nano).where(
        usage_table.c.event_seq == event_seq
    )
    return sum(charge_nano for other, charge_nano in reader.execute(charges) if other < request_id)


def _transfers() -> Select[*tuple[Any, ...]]:
    debit, credit = account_table.alias("debited"), account_table.alias("credited")
    transfer = transfer_table.c
    return (
        select(
            debit.c.code, credit.c.code, transfer.amount, transfer.phase, transfer.pending_seq, transfer.expires_ns
        )
        .join(event_table, event_table.c.seq == transfer.event_seq)
        .join(debit, debit.c.id == transfer.debit)
        .join(credit, credit.c.id == transfer.credit)
        .order_by(transfer.seq)
    )


def _leg(row: Row[*tuple[Any, ...]]) -> Leg:
    return Leg(*row)
