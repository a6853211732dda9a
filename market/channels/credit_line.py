"""Friends: two gateways that owe each other up to so much, and no house.

Each buys from the other on a channel of its own whose backing is the line. What they owe is the difference;
what one has paid the other, by whatever means, the receiver acknowledges as a sum since the beginning.
"""

import hashlib
from dataclasses import dataclass

from msgspec import Struct

from market.channels.terms import Terms
from market.errors import StatementInvalid
from market.records.amounts import Amount
from market.records.canonical import canonical
from market.records.envelope import Count, Hex32, Record
from market.records.standing import StandingOf, check_speaker


class CreditLine(Struct, frozen=True):
    """Both sign the same body. `first` is the smaller of the two ids; each may owe the other so much at most."""

    first: Hex32
    second: Hex32
    first_owes_max_nano: Amount
    second_owes_max_nano: Amount
    opened_ms: Count

    @property
    def id(self) -> str:
        members = {
            "first": self.first,
            "first_owes_max_nano": str(int(self.first_owes_max_nano)),
            "opened_ms": self.opened_ms,
            "second": self.second,
            "second_owes_max_nano": str(int(self.second_owes_max_nano)),
        }
        return hashlib.sha256(canonical(members)).hexdigest()

    def bought_by(self, buyer: str) -> Terms:
        """The channel on which one of the two buys from the other."""
        return Terms(buyer, self.second if buyer == self.first else self.first, self.id)

    def owes_max_nano(self, buyer: str) -> int:
        return int(self.first_owes_max_nano if buyer == self.first else self.second_owes_max_nano)


class Payment(Struct, frozen=True):
    """The receiver's word that `payer` has paid `paid_nano` in all since the line was opened."""

    line: Hex32
    payer: Hex32
    paid_nano: Amount


@dataclass(frozen=True, slots=True)
class Paid:
    """What each has paid the other, as acknowledged by the other; the larger sum is the newer."""

    first_nano: int = 0
    second_nano: int = 0

    def merged(self, other: "Paid") -> "Paid":
        """What either side knows."""
        return Paid(max(self.first_nano, other.first_nano), max(self.second_nano, other.second_nano))


def agree(one: Record, other: Record, standing: StandingOf) -> CreditLine:
    """The line that two records of the same words open, one by each party.

    Raises:
        RecordInvalid: a field of one is wrong.
        StatementInvalid: they say different things, or one of the two has not signed.
    """
    line = one.read("credit_line", CreditLine)
    if line != other.read("credit_line", CreditLine):
        raise StatementInvalid("the two have not signed the same credit line")
    if not line.first < line.second or {one.issuer, other.issuer} != {line.first, line.second}:
        raise StatementInvalid("a credit line is signed by both, who are named in the order of their ids")
    for record in (one, other):
        check_speaker(record, record.issuer, standing)
    return line


def read_payment(record: Record, line: CreditLine, standing: StandingOf) -> Paid:
    """What a payment record acknowledges.

    Raises:
        RecordInvalid: a field of it is wrong.
        StatementInvalid: it is of another line, or not by the receiver.
    """
    payment = record.read("payment", Payment)
    if payment.line != line.id or payment.payer not in (line.first, line.second):
        raise StatementInvalid("the payment is of another line")
    check_speaker(record, line.second if payment.payer == line.first else line.first, standing)
    paid_nano = int(payment.paid_nano)
    return Paid(paid_nano, 0) if payment.payer == line.first else Paid(0, paid_nano)


def first_owes_nano(first_bought_nano: int, second_bought_nano: int, paid: Paid) -> int:
    """What the first owes the second, in nano-USD; below zero it is the second that owes."""
    return (first_bought_nano - paid.first_nano) - (second_bought_nano - paid.second_nano)


def limit_nano(line: CreditLine, buyer: str, other_bought_nano: int, paid: Paid) -> int:
    """How much the buyer's channel may come to in all.

    That is what the line allows, what the buyer has paid, and what the other owes for its own purchases, as far
    as it has not paid them: all three only grow, and so does the limit, but for what the other pays.
    """
    mine, theirs = (paid.first_nano, paid.second_nano)[:: 1 if buyer == line.first else -1]
    return max(0, line.owes_max_nano(buyer) + mine + other_bought_nano - theirs)
