"""Prove a channel's sum to a party that trusts no one: collect the few signed records behind it, and read them
back.
"""

from collections.abc import Iterable

from market.errors import StatementInvalid
from market.protocol.channels.channel import Channel, Lane, delivered, promised
from market.protocol.channels.statements import Delivery, Promise, Receipt, read_receipt, read_voucher
from market.protocol.channels.terms import LANES_MAX, ChannelTerms
from market.protocol.records.envelope import Record
from market.protocol.records.key_status import StandingOf

EVIDENCE_MAX = 4 * LANES_MAX
"""For every lane a claim and an assent, each with its voucher."""


def evidence(channel: Channel) -> list[Record]:
    """Return the records behind everything that is known of a channel, each once."""
    records = {record.digest: record for lane in channel.lanes.values() for record in _records(lane)}
    return list(records.values())


def read_evidence(records: Iterable[Record], terms: ChannelTerms, standing: StandingOf) -> Channel:
    """Return the channel that follows from records, in any order.

    Raises:
        RecordInvalid: a field of one is wrong.
        StatementInvalid: one belongs to another channel or names a missing voucher, or there are too many.
    """
    of_kind: dict[str, list[Record]] = {"voucher": [], "receipt": []}
    for count, record in enumerate(records, 1):
        if count > EVIDENCE_MAX or record.kind not in of_kind:
            raise StatementInvalid(f"a channel's evidence is at most {EVIDENCE_MAX} vouchers and receipts")
        of_kind[record.kind].append(record)
    channel, promises = Channel(terms), dict[str, Promise]()
    for record in of_kind["voucher"]:
        promises[record.digest] = read_voucher(record, terms, standing)
        channel = promised(channel, promises[record.digest])
    for record in of_kind["receipt"]:
        channel = delivered(channel, _delivery(record, promises, terms, standing), record.issuer)
    return channel


def _delivery(record: Record, promises: dict[str, Promise], terms: ChannelTerms, standing: StandingOf) -> Delivery:
    promise = promises.get(record.read("receipt", Receipt).voucher)
    if promise is None:
        raise StatementInvalid("a receipt names a voucher that is missing from the records")
    return read_receipt(record, promise, terms, standing)


def _records(lane: Lane) -> Iterable[Record]:
    for known in (lane.claim, lane.assent):
        if isinstance(known, Delivery):
            yield known.promise.record
        if known is not None:
            yield known.record
