"""Check a job's backing: an allocation to us by a trusted marketplace, or a credit line that we signed, too."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

from market.credit_lines.balance import Balances
from market.credit_lines.partners import Partners
from market.credit_lines.partnership import Partnership
from market.errors import RecordInvalid, StatementInvalid
from market.network.identity import OwnIdentity
from market.protocol.channels.admission import ChannelCredit
from market.protocol.channels.credit_line import CreditLine, agree
from market.protocol.channels.job import STATEMENTS_MAX
from market.protocol.channels.terms import ChannelTerms, read_allocation
from market.protocol.identity.connected import connected
from market.protocol.identity.lineage import Identities
from market.protocol.identity.statements import check_statement
from market.protocol.records.amounts import read_amount
from market.protocol.records.envelope import Record, open_record
from market.protocol.records.key_status import Standing, StandingOf
from market.seller.carrier import JobRefused
from market.seller.store import Backing

ALLOCATED_NANO_MIN = 10**6
"""The minimum of an allocation, in nano-USD, because each channel is stored for months."""


@dataclass(frozen=True, slots=True)
class Backed:
    """A channel to us, backed by an issuer we know; a line's signing keys are still unchecked."""

    terms: ChannelTerms
    credit: ChannelCredit
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Credited:
    """A channel's terms and credit. `standing` includes the buyer's own statements about its keys."""

    terms: ChannelTerms
    credit: ChannelCredit
    standing: StandingOf
    backing: Backing
    statements: tuple[Record, ...] = ()

    def knowing(self, other: "Credited") -> "Credited":
        """Return this, extended by what another job of the channel stated about the buyer's keys."""
        statements = (
            *self.statements,
            *(record for record in other.statements if record.raw not in self.backing.statements),
        )
        if len(statements) == len(self.statements):
            return self
        backing = replace(self.backing, statements=tuple(record.raw for record in statements))
        return replace(self, standing=_knowing(statements, self.standing), backing=backing, statements=statements)


class _Head(Struct):
    """The fields of a record that are checked before its signature."""

    kind: str
    issuer: str


class _LineHead(Struct):
    body: CreditLine


@dataclass(frozen=True, slots=True)
class Creditor:
    """Reads backings. `marketplace` returns the identity of the currently trusted marketplace, if any.

    `partners` are the lines that count here. Our signature alone is not enough, because a line may be ended.
    """

    seller: str
    standing: StandingOf
    marketplace: Callable[[], str | None]
    partners: Partners
    positions: Balances

    def read(self, backing: Sequence[bytes], statements: Sequence[bytes]) -> Credited:
        """Check the backing of a channel.

        Raises:
            RecordInvalid, StatementInvalid, IdentityInvalid: the records are invalid.
            JobRefused: the records may be valid, but this seller does not accept them.
        """
        return self.credited(self.backed(backing), statements)

    def backed(self, backing: Sequence[bytes]) -> Backed:
        """Return whose channel it is. Signatures are checked only if their issuer matters here.

        Raises:
            RecordInvalid, StatementInvalid, JobRefused: see `read`.
        """
        if len(backing) not in (1, 2):
            raise StatementInvalid("a channel needs one allocation, or the two records of a credit line")
        heads = [_head(raw) for raw in backing]
        return self._allocated(backing[0], heads[0]) if len(backing) == 1 else self._lent(backing, heads)

    def credited(self, backed: Backed, statements: Sequence[bytes]) -> Credited:
        """Return the channel with its buyer's statements about its keys. Repeated statements count once.

        Raises:
            RecordInvalid, StatementInvalid, IdentityInvalid: see `read`.
            JobRefused: there are too many statements, or see `read`.
        """
        terms = backed.terms
        raws = list(dict.fromkeys(statements))
        if len(raws) > STATEMENTS_MAX:
            raise JobRefused(
                "refused",
                f"The job has too many statements about the buyer's keys. At most {STATEMENTS_MAX} are allowed.",
            )
        opened = tuple(connected(terms.buyer, [_statement(raw, terms.buyer) for raw in raws]))
        standing = _knowing(opened, self.standing)
        if len(backed.records) == 2:
            agree(*backed.records, standing)
        kept = tuple(record.raw for record in backed.records), tuple(record.raw for record in opened)
        backing = Backing(terms.channel, len(backed.records) == 1, *kept, backed.credit.expires_ms)
        return Credited(terms, backed.credit, standing, backing, opened)

    def _allocated(self, raw: bytes, head: _Head) -> Backed:
        marketplace = self.marketplace()
        if marketplace is None:
            raise JobRefused(
                "refused", "This seller accepts no allocations, or has not reached its marketplace yet."
            )
        if (head.kind, head.issuer) != ("allocation", marketplace):
            raise StatementInvalid("the job's backing is not an allocation by this seller's marketplace")
        record = open_record(raw)
        terms, allocation = read_allocation(record, marketplace, self.standing)
        self._check_ours(terms)
        if allocation.limit_nano < ALLOCATED_NANO_MIN:
            raise JobRefused(
                "refused", f"The allocation is too small. At least {ALLOCATED_NANO_MIN} nano-USD are needed."
            )
        return Backed(terms, ChannelCredit(int(allocation.limit_nano), record.expires_ms), (record,))

    def _lent(self, raws: Sequence[bytes], heads: Sequence[_Head]) -> Backed:
        if self.seller not in (head.issuer for head in heads):
            raise StatementInvalid("the job's backing is for another seller")
        self._partnership(_line(raws[0]))
        records = tuple(map(open_record, raws))
        line = records[0].read("credit_line", CreditLine)
        ends_ms = min((record.expires_ms for record in records if record.expires_ms is not None), default=None)
        credit = self._credit(line, ends_ms)
        terms = line.bought_by(line.first if line.second == self.seller else line.second)
        self._check_ours(terms)
        return Backed(terms, credit, records)

    def _check_ours(self, terms: ChannelTerms) -> None:
        if terms.seller != self.seller or terms.buyer == self.seller:
            raise StatementInvalid("the job's backing is for another seller")

    def _credit(self, line: CreditLine, ends_ms: int | None) -> ChannelCredit:
        """Return a line's credit, including payments and what we have bought and signed for ourselves."""
        partnership = self._partnership(line)
        try:
            limit_nano = self.positions.of(partnership).may_sell_nano
        except sqlite3.Error as error:
            raise JobRefused("full", "This seller cannot read its ledger now. Try again later.") from error
        # Receipts of what was delivered before the end still count.
        return ChannelCredit(limit_nano, 0 if partnership.is_ended else ends_ms)

    def _partnership(self, line: CreditLine) -> Partnership:
        partnership = self.partners.find(line.id)
        if partnership is None or partnership.own_signature is None:
            raise JobRefused("refused", "This seller does not know this credit line.")
        return partnership


def knowing_ourselves(own: OwnIdentity, standing: StandingOf) -> StandingOf:
    """Return the standing of keys, with our own newest key at once: others learn of it a little later."""

    def find(identity: str, key: str) -> Standing:
        known = standing(identity, key)
        return own.lineage.standing(key) if known == "unknown" and identity == own.id else known

    return find


def _head(raw: bytes) -> _Head:
    try:
        return msgspec.json.decode(raw, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RecordInvalid("backing", "is not a record") from None


def _line(raw: bytes) -> CreditLine:
    try:
        return msgspec.json.decode(raw, type=_LineHead, dec_hook=read_amount).body
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RecordInvalid("backing", "is not a credit line") from None


def _statement(raw: bytes, buyer: str) -> Record:
    head = _head(raw)
    if head.issuer != buyer or head.kind not in ("founding", "rotation", "revocation"):
        raise StatementInvalid("a job may only contain the buyer's own statements about its keys")
    record = open_record(raw)
    check_statement(record)
    return record


def _knowing(statements: Sequence[Record], standing: StandingOf) -> StandingOf:
    """Return the standing of keys, including an identity's own statements. Any revocation counts."""
    if not statements:
        return standing
    own, issuers = Identities(statements), {record.issuer for record in statements}

    def find(identity: str, key: str) -> Standing:
        known = standing(identity, key)
        if identity not in issuers or known == "revoked":
            return known
        found = own.standing(identity, key)
        # A job may leave out a rotation that others know.
        return known if (known, found) == ("retired", "current") else found

    return find
