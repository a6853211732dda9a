"""What a job's channel rests on: an allocation of a trusted house for us, or a credit line that we signed too."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

from gateway.friends.friends import Friends
from gateway.friends.friendship import Friendship
from gateway.friends.position import Positions
from gateway.market.identity import OwnIdentity
from gateway.selling.carrier import Refused
from gateway.selling.store import Backing
from market.channels.admission import ChannelCredit
from market.channels.credit_line import CreditLine, agree
from market.channels.job import STATEMENTS_MAX
from market.channels.terms import ChannelTerms, read_allocation
from market.errors import RecordInvalid, StatementInvalid
from market.identity.connected import connected
from market.identity.lineage import Identities
from market.identity.statements import check_statement
from market.records.amounts import read_amount
from market.records.envelope import Record, open_record
from market.records.key_status import Standing, StandingOf

ALLOCATED_NANO_MIN = 10**6
"""Channels with less behind them are not opened: each is kept for months."""


@dataclass(frozen=True, slots=True)
class Backed:
    """A channel that is for us, on the word of somebody we know; the keys of a line's signers wait for a check."""

    terms: ChannelTerms
    credit: ChannelCredit
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Credited:
    """A channel's terms and credit. `standing` also knows what the buyer's own statements say about its keys."""

    terms: ChannelTerms
    credit: ChannelCredit
    standing: StandingOf
    backing: Backing
    said: tuple[Record, ...] = ()

    def knowing(self, other: "Credited") -> "Credited":
        """With what another job of the channel has said about the buyer's keys, too."""
        said = (*self.said, *(record for record in other.said if record.raw not in self.backing.statements))
        if len(said) == len(self.said):
            return self
        backing = replace(self.backing, statements=tuple(record.raw for record in said))
        return replace(self, standing=_knowing(said, self.standing), backing=backing, said=said)


class _Head(Struct):
    """Of a record, what is looked at before its signature."""

    kind: str
    issuer: str


class _LineHead(Struct):
    body: CreditLine


@dataclass(frozen=True, slots=True)
class Creditor:
    """Reads backings. `house` is the identity of the house that is trusted now, if any is.

    `friends` are the lines that count here: our signature alone does not, since a line may be ended.
    """

    seller: str
    standing: StandingOf
    house: Callable[[], str | None]
    friends: Friends
    positions: Positions

    def read(self, backing: Sequence[bytes], statements: Sequence[bytes]) -> Credited:
        """Check what a channel rests on.

        Raises:
            RecordInvalid, StatementInvalid, IdentityInvalid: nobody should believe it.
            Refused: it may be right, but is nothing that this seller takes.
        """
        return self.credited(self.backed(backing), statements)

    def backed(self, backing: Sequence[bytes]) -> Backed:
        """Whose channel it is. No signature is looked at before it is known that its issuer matters here.

        Raises:
            RecordInvalid, StatementInvalid, Refused: see `read`.
        """
        if len(backing) not in (1, 2):
            raise StatementInvalid("a channel rests on one allocation, or on the two records of a credit line")
        heads = [_head(raw) for raw in backing]
        return self._allocated(backing[0], heads[0]) if len(backing) == 1 else self._lent(backing, heads)

    def credited(self, backed: Backed, statements: Sequence[bytes]) -> Credited:
        """The channel with what its buyer says about its keys. The same statement again is no other.

        Raises:
            RecordInvalid, StatementInvalid, IdentityInvalid, Refused: see `read`.
        """
        terms = backed.terms
        raws = list(dict.fromkeys(statements))
        if len(raws) > STATEMENTS_MAX:
            raise Refused("refused", f"More than {STATEMENTS_MAX} statements about one buyer's keys.")
        said = tuple(connected(terms.buyer, [_statement(raw, terms.buyer) for raw in raws]))
        standing = _knowing(said, self.standing)
        if len(backed.records) == 2:
            agree(*backed.records, standing)
        kept = tuple(record.raw for record in backed.records), tuple(record.raw for record in said)
        backing = Backing(terms.channel, len(backed.records) == 1, *kept, backed.credit.expires_ms)
        return Credited(terms, backed.credit, standing, backing, said)

    def _allocated(self, raw: bytes, head: _Head) -> Backed:
        house = self.house()
        if house is None:
            raise Refused("refused", "This seller takes no house's allocations, or does not reach its house yet.")
        if (head.kind, head.issuer) != ("allocation", house):
            raise StatementInvalid("what this job rests on is not an allocation by this seller's house")
        record = open_record(raw)
        terms, allocation = read_allocation(record, house, self.standing)
        self._check_ours(terms)
        if allocation.limit_nano < ALLOCATED_NANO_MIN:
            raise Refused("refused", f"An allocation must be of {ALLOCATED_NANO_MIN} nano-USD at least.")
        return Backed(terms, ChannelCredit(int(allocation.limit_nano), record.expires_ms), (record,))

    def _lent(self, raws: Sequence[bytes], heads: Sequence[_Head]) -> Backed:
        if self.seller not in (head.issuer for head in heads):
            raise StatementInvalid("what this job rests on is for another seller")
        self._friendship(_line(raws[0]))
        records = tuple(map(open_record, raws))
        line = records[0].read("credit_line", CreditLine)
        ends_ms = min((record.expires_ms for record in records if record.expires_ms is not None), default=None)
        credit = self._credit(line, ends_ms)
        terms = line.bought_by(line.first if line.second == self.seller else line.second)
        self._check_ours(terms)
        return Backed(terms, credit, records)

    def _check_ours(self, terms: ChannelTerms) -> None:
        if terms.seller != self.seller or terms.buyer == self.seller:
            raise StatementInvalid("what this job rests on is for another seller")

    def _credit(self, line: CreditLine, ends_ms: int | None) -> ChannelCredit:
        """With what has been paid, and what we ourselves have bought and signed for."""
        friendship = self._friendship(line)
        try:
            limit_nano = self.positions.of(friendship).may_sell_nano
        except sqlite3.Error as error:
            raise Refused("full", "This seller cannot read its books just now.") from error
        # Receipts of what was delivered before the end still count.
        return ChannelCredit(limit_nano, 0 if friendship.is_ended else ends_ms)

    def _friendship(self, line: CreditLine) -> Friendship:
        friendship = self.friends.find(line.id)
        if friendship is None or friendship.ours is None:
            raise Refused("refused", "This seller knows of no such credit line.")
        return friendship


def knowing_ourselves(own: OwnIdentity, standing: StandingOf) -> StandingOf:
    """The standing of keys, with our own newest one at once: others are told of it a little later."""

    def find(identity: str, key: str) -> Standing:
        known = standing(identity, key)
        return own.lineage.standing(key) if known == "unknown" and identity == own.id else known

    return find


def _head(raw: bytes) -> _Head:
    try:
        return msgspec.json.decode(raw, type=_Head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RecordInvalid("backing", "is no record") from None


def _line(raw: bytes) -> CreditLine:
    try:
        return msgspec.json.decode(raw, type=_LineHead, dec_hook=read_amount).body
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RecordInvalid("backing", "is no credit line") from None


def _statement(raw: bytes, buyer: str) -> Record:
    head = _head(raw)
    if head.issuer != buyer or head.kind not in ("founding", "rotation", "revocation"):
        raise StatementInvalid("a job's statements are the buyer's own, about its keys")
    record = open_record(raw)
    check_statement(record)
    return record


def _knowing(said: Sequence[Record], standing: StandingOf) -> StandingOf:
    """The standing of keys, with what an identity says of itself; whoever knows that a key is revoked is right."""
    if not said:
        return standing
    own, issuers = Identities(said), {record.issuer for record in said}

    def find(identity: str, key: str) -> Standing:
        known = standing(identity, key)
        if identity not in issuers or known == "revoked":
            return known
        found = own.standing(identity, key)
        # A job may leave out the rotation that everybody else has heard of.
        return known if (known, found) == ("retired", "current") else found

    return find
