"""Keep signatures about a disputed request that the marketplace does not know: receipts that its buyer submits.

The marketplace keeps only the signature of a lane that admits most: a later request's replaces an earlier one's. A
claim about the earlier one may still come. Its buyer's receipt then counts as if nothing had followed.
"""

import json
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy.orm import Session

from market.errors import RecordInvalid, StatementInvalid
from market.marketplace.context import MarketplaceContext
from market.marketplace.dispute_state import claim_of, signed_counts
from market.marketplace.statements import identities_known, standing_to_settle
from market.marketplace.tables import DisputeRow
from market.protocol.audits.disputes import Dispute
from market.protocol.channels.channel import Channel, Lane, delivered
from market.protocol.channels.statements import Delivery, read_receipt
from market.protocol.channels.terms import ChannelTerms
from market.protocol.records.envelope import Record, open_record
from market.protocol.records.key_status import Standing, StandingOf

RECEIPTS_MAX = 2
"""The buyer's receipt, and the seller's own earlier one."""


def keep_word(
    context: MarketplaceContext, session: Session, row: DisputeRow, lane: Lane, receipts: Iterable[Record]
) -> None:
    """Store receipts of the disputed request, with those submitted before.

    Raises:
        StatementInvalid: one belongs to another request, or is by neither party of the channel.
    """
    brought = Channel(_terms(row, lane), {row.sub_channel: word_of(row, lane)})
    standing = _standing(context, session, brought.terms)
    for record in receipts:
        try:
            delivery = read_receipt(record, claim_of(lane).promise, brought.terms, standing)
        except (RecordInvalid, StatementInvalid) as error:
            raise StatementInvalid(f"not a receipt of the disputed request: {error}", "receipts") from None
        brought = delivered(brought, delivery, record.issuer)
    known = brought.lanes[row.sub_channel]
    kept = [each.record.raw.decode() for each in (known.assent, known.claim) if isinstance(each, Delivery)]
    row.receipts = json.dumps(kept)


def word_of(row: DisputeRow, lane: Lane) -> Lane:
    """Return the submitted receipts of the request in the lane's claim. They were verified on arrival."""
    brought, promise = Channel(_terms(row, lane)), claim_of(lane).promise
    for raw in json.loads(row.receipts or "[]"):
        record = open_record(raw.encode())
        try:
            delivery = read_receipt(record, promise, brought.terms, _believed)
        except StatementInvalid:
            continue  # The seller has since claimed this number with another voucher.
        brought = delivered(brought, delivery, record.issuer)
    return brought.lanes.get(row.sub_channel, Lane())


def remembered(row: DisputeRow, lane: Lane) -> Lane:
    """Return the lane as if nothing had been signed after the disputed request, if its receipt was submitted."""
    own, known = word_of(row, lane).assent, signed_counts(lane)
    if not isinstance(own, Delivery) or (known and known.amount_nano >= own.amount_nano):
        return lane
    return replace(lane, assent=own)


def agreed_end(row: DisputeRow, lane: Lane) -> Delivery | None:
    """Return the buyer's receipt if the seller had signed the same end of the answer before it claimed another."""
    own, sellers = signed_counts(remembered(row, lane)), word_of(row, lane).claim
    if own is None or sellers is None or not (own.receipt.is_final and sellers.receipt.is_final):
        return None
    is_same = own.receipt.transcript == sellers.receipt.transcript
    return own if is_same and Dispute(sellers, own, opened_by="buyer").is_small else None


def _terms(row: DisputeRow, lane: Lane) -> ChannelTerms:
    claim = claim_of(lane)
    return ChannelTerms(claim.promise.record.issuer, claim.record.issuer, row.allocation_digest)


def _standing(context: MarketplaceContext, session: Session, terms: ChannelTerms) -> StandingOf:
    """Return whose signatures count, as at settlement: neither party withdraws a statement by revoking a key."""
    exchanged = [
        open_record(raw) for issuer in (terms.buyer, terms.seller) for raw in context.statements_of(issuer)
    ]
    identities = identities_known(session, (terms.buyer, terms.seller), exchanged)
    return lambda identity, key: standing_to_settle(identities, identity)(identity, key)


def _believed(_: str, __: str) -> Standing:
    return "current"
