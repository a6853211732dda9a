"""Check the backing of a relayed job: only jobs backed by this marketplace's credits are relayed."""

import time
from typing import NamedTuple

from market.errors import JobInvalid, MarketError
from market.protocol.channels.job import MarketJob, read_job
from market.protocol.channels.statements import read_voucher
from market.protocol.channels.terms import ChannelTerms, read_allocation
from market.protocol.identity.lineage import Identities
from market.protocol.identity.statements import check_statement
from market.protocol.records.envelope import open_record
from market.protocol.records.key_status import StandingOf
from runtime.errors import BudgetExceeded, RequestInvalid


class Backing(NamedTuple):
    """The channel that a job is on, and the digest of the allocation that is behind it."""

    channel: str
    allocation: str


class Unbacked(BudgetExceeded):
    """No allocation of this marketplace backs the job; waiting would not help."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None)
        self.code = "unpaid"


def backing_of(packed: bytes, seller: str, marketplace: str, standing: StandingOf) -> Backing:
    """Return the backing of a job, without looking at its sealed request.

    Raises:
        RequestInvalid: it is not a job.
        Unbacked: the marketplace has reserved nothing for it.
    """
    try:
        job = read_job(packed)
    except JobInvalid as error:
        raise RequestInvalid(str(error), code="malformed") from None
    try:
        return _backing(job, seller, marketplace, standing)
    except MarketError as error:
        raise Unbacked(f"This marketplace relays only jobs backed by its allocations: {error}") from None


def _backing(job: MarketJob, seller: str, marketplace: str, standing: StandingOf) -> Backing:
    """Raises MarketError, Unbacked."""
    record = open_record(job.backing[0])
    terms, _ = read_allocation(record, marketplace, standing)
    if terms.seller != seller:
        raise Unbacked("The allocation is for another seller.")
    if record.expires_ms is None or record.expires_ms <= time.time() * 1000:
        raise Unbacked("The allocation has expired.")
    return Backing(_checked_voucher(job, terms), record.digest)


def _checked_voucher(job: MarketJob, terms: ChannelTerms) -> str:
    statements = [open_record(raw) for raw in job.statements]
    for statement in statements:
        check_statement(statement)
    read_voucher(open_record(job.voucher), terms, Identities(statements).standing)
    return terms.channel
