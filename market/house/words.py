"""What was signed of a disputed request and the house does not know: receipts that its buyer brings.

Of a lane the house keeps what admits most: a later request's voucher or receipt takes the place of an earlier's.
A claim about the earlier one may still come, and its buyer's receipt counts then as if nothing had come behind.
"""

import json
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy.orm import Session

from market.auditing.disputes import Dispute
from market.channels.channel import Channel, Lane, delivered
from market.channels.statements import Delivery, read_receipt
from market.channels.terms import Terms
from market.errors import RecordInvalid, StatementInvalid
from market.house.office import Office
from market.house.quarrels import claim_of, signed_counts
from market.house.statements import identities_known, standing_to_settle
from market.house.tables import DisputeRow
from market.records.envelope import Record, open_record
from market.records.standing import Standing, StandingOf

RECEIPTS_MAX = 2
"""The buyer's, and the seller's own word of before."""


def keep_word(office: Office, session: Session, row: DisputeRow, lane: Lane, receipts: Iterable[Record]) -> None:
    """Keep receipts of the disputed request, beside what was brought before.

    Raises:
        StatementInvalid: one is of another request, or by nobody who deals on the channel.
    """
    brought = Channel(_terms(row, lane), {row.lane: word_of(row, lane)})
    standing = _standing(office, session, brought.terms)
    for record in receipts:
        try:
            delivery = read_receipt(record, claim_of(lane).promise, brought.terms, standing)
        except (RecordInvalid, StatementInvalid) as error:
            raise StatementInvalid(f"no receipt of the disputed request: {error}", "receipts") from None
        brought = delivered(brought, delivery, record.issuer)
    known = brought.lanes[row.lane]
    kept = [each.record.raw.decode() for each in (known.assent, known.claim) if isinstance(each, Delivery)]
    row.receipts = json.dumps(kept)


def word_of(row: DisputeRow, lane: Lane) -> Lane:
    """What was brought of the request that the lane's claim is about; they were checked when they came."""
    brought, promise = Channel(_terms(row, lane)), claim_of(lane).promise
    for raw in json.loads(row.receipts or "[]"):
        record = open_record(raw.encode())
        try:
            delivery = read_receipt(record, promise, brought.terms, _believed)
        except StatementInvalid:
            continue  # The seller claims the number by another voucher since.
        brought = delivered(brought, delivery, record.issuer)
    return brought.lanes.get(row.lane, Lane())


def remembered(row: DisputeRow, lane: Lane) -> Lane:
    """The lane as if nothing had been signed behind the disputed request, where its receipt was brought."""
    own, known = word_of(row, lane).assent, signed_counts(lane)
    if not isinstance(own, Delivery) or (known and known.amount_nano >= own.amount_nano):
        return lane
    return replace(lane, assent=own)


def agreed_end(row: DisputeRow, lane: Lane) -> Delivery | None:
    """The buyer's receipt, where the seller had signed the same end of the answer before it claimed another."""
    own, sellers = signed_counts(remembered(row, lane)), word_of(row, lane).claim
    if own is None or sellers is None or not (own.receipt.is_final and sellers.receipt.is_final):
        return None
    is_same = own.receipt.transcript == sellers.receipt.transcript
    return own if is_same and Dispute(sellers, own, opened_by="buyer").is_small else None


def _terms(row: DisputeRow, lane: Lane) -> Terms:
    claim = claim_of(lane)
    return Terms(claim.promise.record.issuer, claim.record.issuer, row.allocation)


def _standing(office: Office, session: Session, terms: Terms) -> StandingOf:
    """As when a channel is settled. No more than a buyer does a seller take back its word by revoking its key."""
    told = [open_record(raw) for issuer in (terms.buyer, terms.seller) for raw in office.told(issuer)]
    identities = identities_known(session, (terms.buyer, terms.seller), told)
    return lambda identity, key: standing_to_settle(identities, identity)(identity, key)


def _believed(_: str, __: str) -> Standing:
    return "current"
