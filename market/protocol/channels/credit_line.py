"""Trade between partners: two gateways owe each other up to a limit, without a marketplace.

Each buys from the other on its own channel, backed by the credit line. Their debt is the difference. When one has
paid the other by any means, the receiver acknowledges the total since the beginning.
"""

import hashlib
from dataclasses import dataclass

from msgspec import Struct

from market.errors import StatementInvalid
from market.protocol.channels.terms import ChannelTerms
from market.protocol.records.amounts import Amount
from market.protocol.records.canonical import canonical
from market.protocol.records.envelope import Count, Hex32, Record
from market.protocol.records.key_status import StandingOf, check_speaker


class CreditLine(Struct, frozen=True):
    """The terms that both sign. `first` is the smaller of the two ids. Each may owe the other up to its limit."""

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

    def bought_by(self, buyer: str) -> ChannelTerms:
        """Return the channel on which one of the two buys from the other."""
        return ChannelTerms(buyer, self.second if buyer == self.first else self.first, self.id)

    def owes_max_nano(self, buyer: str) -> int:
        return int(self.first_owes_max_nano if buyer == self.first else self.second_owes_max_nano)


class Payment(Struct, frozen=True):
    """The receiver's statement that `payer` has paid `paid_nano` in all since the line was opened."""

    line: Hex32
    payer: Hex32
    paid_nano: Amount


@dataclass(frozen=True, slots=True)
class Paid:
    """The sums that each has paid the other, acknowledged by the receiver. The larger sum is the newer one."""

    first_nano: int = 0
    second_nano: int = 0

    def merged(self, other: "Paid") -> "Paid":
        """Return what both sides know together."""
        return Paid(max(self.first_nano, other.first_nano), max(self.second_nano, other.second_nano))


def agree(one: Record, other: Record, standing: StandingOf) -> CreditLine:
    """Return the line that two records with the same terms open, one by each party.

    Raises:
        RecordInvalid: a field of one is wrong.
        StatementInvalid: their terms differ, or one of the two has not signed.
    """
    line = one.read("credit_line", CreditLine)
    if line != other.read("credit_line", CreditLine):
        raise StatementInvalid("the two have not signed the same credit line")
    if not line.first < line.second or {one.issuer, other.issuer} != {line.first, line.second}:
        raise StatementInvalid("both parties must sign a credit line, which names them in the order of their ids")
    for record in (one, other):
        check_speaker(record, record.issuer, standing)
    return line


def read_payment(record: Record, line: CreditLine, standing: StandingOf) -> Paid:
    """Return what a payment record acknowledges.

    Raises:
        RecordInvalid: a field of it is wrong.
        StatementInvalid: it belongs to another line, or is not by the receiver.
    """
    payment = record.read("payment", Payment)
    if payment.line != line.id or payment.payer not in (line.first, line.second):
        raise StatementInvalid("the payment belongs to another line")
    check_speaker(record, line.second if payment.payer == line.first else line.first, standing)
    paid_nano = int(payment.paid_nano)
    return Paid(paid_nano, 0) if payment.payer == line.first else Paid(0, paid_nano)


def first_owes_nano(first_bought_nano: int, second_bought_nano: int, paid: Paid) -> int:
    """Return what the first owes the second, in nano-USD. A negative sum is owed by the second."""
    return (first_bought_nano - paid.first_nano) - (second_bought_nano - paid.second_nano)


def limit_nano(line: CreditLine, buyer: str, other_bought_nano: int, paid: Paid) -> int:
    """Return the limit for the total of the buyer's channel.

    It is the line's limit, plus what the buyer has paid, plus the other's unpaid purchases. These only grow, so
    the limit falls only when the other pays.
    """
    paid_nano, received_nano = (paid.first_nano, paid.second_nano)[:: 1 if buyer == line.first else -1]
    return max(0, line.owes_max_nano(buyer) + paid_nano + other_bought_nano - received_nano)
