"""One credit line as one of its sides knows it: who signed it, and what each acknowledged. No I/O.

`merged` is a join: texts that come twice, late or in another order give the same result.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from market.errors import StatementInvalid
from market.protocol.channels.credit_line import CreditLine, Paid, Payment, read_payment
from market.protocol.channels.terms import ChannelTerms
from market.protocol.identity.lineage import Identities
from market.protocol.identity.statements import check_statement
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record, open_record
from market.protocol.records.key_status import Standing, StandingOf, check_speaker


@dataclass(frozen=True, slots=True)
class Partnership:
    """A line between `own` and a partner.

    `statements` are the partner's about its keys, `url` is where it sells. If `is_ended`, we neither sell nor buy
    on it any more; what is owed stays owed.
    """

    line: CreditLine
    own: str
    own_signature: Record | None = None
    partner_signature: Record | None = None
    payments: tuple[Record, ...] = ()
    statements: tuple[Record, ...] = ()
    url: str = ""
    is_ended: bool = False

    @property
    def partner(self) -> str:
        return self.line.second if self.own == self.line.first else self.line.first

    @property
    def bought(self) -> ChannelTerms:
        """Return the channel on which we buy from the partner."""
        return self.line.bought_by(self.own)

    @property
    def sold(self) -> ChannelTerms:
        """Return the channel on which the partner buys from us."""
        return self.line.bought_by(self.partner)

    @property
    def records(self) -> tuple[Record, ...]:
        """Return the line's signatures so far, by either side."""
        return tuple(each for each in (self.own_signature, self.partner_signature) if each)

    @property
    def ends_ms(self) -> int:
        """Return when its credit ends: with the first of the two signatures."""
        return min((each.expires_ms or 0 for each in self.records), default=0)

    @property
    def is_open(self) -> bool:
        """Return whether both have signed, and we have not ended it."""
        return len(self.records) == 2 and not self.is_ended

    @property
    def paid(self) -> Paid:
        """Return what each has acknowledged; every record was checked when it came."""
        sums = Paid()
        for record in self.payments:
            payment = record.read("payment", Payment)
            nano = int(payment.paid_nano)
            sums = sums.merged(Paid(nano, 0) if payment.payer == self.line.first else Paid(0, nano))
        return sums

    def paid_nano(self, payer: str) -> int:
        return self.paid.first_nano if payer == self.line.first else self.paid.second_nano

    def acknowledgement(self, paid_nano: int) -> Payment:
        """Return our statement, to be signed, of what the partner has paid since the line was opened.

        Raises:
            StatementInvalid: more was acknowledged before; a signed sum only grows.
        """
        if paid_nano < self.paid_nano(self.partner):
            raise StatementInvalid("more was acknowledged before. Give the sum since the line was opened.")
        return Payment(self.line.id, self.partner, Amount(paid_nano))

    def merged(self, other: "Partnership") -> "Partnership":
        """Return everything that either knows; `other` is newer for what is not signed (the address)."""
        assert (self.line, self.own) == (other.line, other.own), "two lines do not become one"
        known = {each.digest: each for each in (*self.statements, *other.statements)}
        return replace(
            self,
            own_signature=_newer(self.own_signature, other.own_signature),
            partner_signature=_newer(self.partner_signature, other.partner_signature),
            payments=_largest((*self.payments, *other.payments)),
            statements=tuple(known[digest] for digest in sorted(known)),
            url=other.url or self.url,
            is_ended=self.is_ended or other.is_ended,
        )


def read_partnership(
    own: str, raws: Iterable[str], statements: Iterable[str], standing: StandingOf | None
) -> Partnership:
    """Return one of our lines as signed records state it, each of them checked; the statements are the partner's.

    `standing` knows our own keys. It is None if all keys were checked before: a line whose key was revoked since
    opens nothing, but must still show what is owed.

    Raises:
        RecordInvalid, StatementInvalid, IdentityInvalid: a record is invalid, or of another line.
    """
    records = [open_record(raw.encode()) for raw in raws]
    signed = [each for each in records if each.kind == "credit_line"]
    if not signed:
        raise StatementInvalid("no credit line is among the records")
    line = signed[0].read("credit_line", CreditLine)
    if not line.first < line.second or own not in (line.first, line.second):
        raise StatementInvalid("the credit line does not name this gateway")
    found = Partnership(line, own)
    opened = _statements(statements, found.partner)
    knows = _standing(Identities(opened).standing, found.partner, standing) if standing else _was_checked
    for record in signed:
        if record.read("credit_line", CreditLine) != line or record.issuer not in (line.first, line.second):
            raise StatementInvalid("the records belong to two credit lines")
        check_speaker(record, record.issuer, knows)
        is_ours = record.issuer == own
        found = found.merged(Partnership(line, own, record if is_ours else None, None if is_ours else record))
    payments = [each for each in records if each.kind != "credit_line"]
    for record in payments:
        read_payment(record, line, knows)
    return replace(found, payments=_largest(payments), statements=opened)


def _statements(raws: Iterable[str], partner: str) -> tuple[Record, ...]:
    opened = tuple(open_record(raw.encode()) for raw in raws)
    for record in opened:
        check_statement(record)
    if any(record.issuer != partner for record in opened):
        raise StatementInvalid("the statements are not the partner's own")
    return opened


def _was_checked(_identity: str, _key: str) -> Standing:
    return "current"


def _standing(of_partner: StandingOf, partner: str, of_own: StandingOf) -> StandingOf:
    return lambda identity, key: (of_partner if identity == partner else of_own)(identity, key)


def _newer(one: Record | None, other: Record | None) -> Record | None:
    """Return the newer signature."""
    return max((r for r in (one, other) if r), key=lambda r: (r.revision, r.digest), default=None)


def _largest(payments: Iterable[Record]) -> tuple[Record, ...]:
    """Return the largest sum of each receiver."""
    best: dict[str, Record] = {}
    for record in payments:
        best[record.issuer] = max(record, best.get(record.issuer, record), key=_sum_of)
    return tuple(best[issuer] for issuer in sorted(best))


def _sum_of(record: Record) -> tuple[int, str]:
    return int(record.read("payment", Payment).paid_nano), record.digest
