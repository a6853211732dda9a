"""The owner's actions on credit lines: offer, sign, acknowledge, end. Repeating any of it changes nothing."""

from dataclasses import dataclass, replace
from pathlib import Path

from market.credit_lines.balance import Balance, Balances
from market.credit_lines.export import is_address, read, written
from market.credit_lines.partners import Partners
from market.credit_lines.partnership import Partnership
from market.errors import StatementInvalid
from market.network.identity import OwnIdentity
from market.protocol.channels.credit_line import CreditLine
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import LIFETIME_MAX_MS, Record

_NAME_DIGITS = 32


@dataclass(frozen=True, slots=True)
class LineOffer:
    """The most that each side may owe the other, in nano-USD, and how long the line lasts."""

    partner: str
    they_owe_max_nano: int
    we_owe_max_nano: int
    lasts_ms: int


class CreditLineService:
    """Sign in the name of this gateway.

    Raises:
        MarketError: by any method, if a record is invalid or must not be signed.
        OSError: by any method.
        sqlite3.Error: by methods that read positions.
    """

    def __init__(self, folder: Path, own: OwnIdentity) -> None:
        self._own = own
        self._positions = Balances(folder)
        self.partners = Partners(folder, own)

    def invite(self, offer: LineOffer, now_ms: int) -> Partnership:
        """Sign a line; return the unanswered one if the same was offered before."""
        line = self._line(offer, now_ms)
        for each in self.partners:
            is_same = _reopened(each.line, line) == line
            if (
                is_same
                and each.own_signature
                and not each.partner_signature
                and not each.is_ended
                and now_ms < each.ends_ms
            ):
                return each
        self._check_alone(line, offer.partner, now_ms)
        own_signature = self._sign(line, now_ms, now_ms + offer.lasts_ms)
        return self.partners.keep(Partnership(line, self._own.id, own_signature))

    def heard(self, text: str) -> Partnership:
        """Return what a partner's text says, checked; nothing is stored.

        Raises StatementInvalid if the partner has not signed it.
        """
        received = self.partners.heard(read(text))
        if received.partner_signature is None:
            raise StatementInvalid("the partner has not signed this credit line")
        return received

    def known(self, received: Partnership) -> Partnership | None:
        return self.partners.find(received.line.id)

    def accept(self, received: Partnership, now_ms: int) -> tuple[Partnership, bool]:
        """Store what a partner says, and sign the line if we have not; also return whether we did.

        Raises StatementInvalid if the partner's offer has expired.
        """
        known = self.known(received)
        merged = known.merged(received) if known else received
        if merged.own_signature is not None or merged.partner_signature is None:
            return self.partners.keep(merged), False
        until_ms = merged.partner_signature.expires_ms or 0
        if until_ms <= now_ms:
            raise StatementInvalid("the partner's offer has expired. Ask for another one.")
        self._check_alone(merged.line, merged.partner, now_ms)
        # Clocks may differ: our signature must not make a record that lasts longer than allowed.
        own_signature = self._sign(
            merged.line, now_ms, min(until_ms, now_ms + (LIFETIME_MAX_MS["credit_line"] or 0))
        )
        return self.partners.keep(replace(merged, own_signature=own_signature)), True

    def acknowledge(self, partnership: Partnership, paid_nano: int, now_ms: int) -> Partnership:
        """Sign how much the partner has paid in all, in nano-USD."""
        body = partnership.acknowledgement(paid_nano)
        if partnership.paid_nano(partnership.partner) == paid_nano:
            return partnership
        name = f"{partnership.line.id[:_NAME_DIGITS]}.paid"
        record = self._own.say("payment", name, now_ms, body, now_ms)
        return self.partners.keep(replace(partnership, payments=(*partnership.payments, record)))

    def end(self, partnership: Partnership) -> Partnership:
        return self.partners.keep(replace(partnership, is_ended=True))

    def text(self, partnership: Partnership, url: str = "") -> str:
        """Return the text that tells the partner all we know. `url` is where we sell.

        Raises:
            StatementInvalid: the address is invalid.
        """
        address = url.strip().rstrip("/")
        if not is_address(address):
            raise StatementInvalid("the address must be like https://mill.example, without a path")
        return written(self.partners.export(partnership, address))

    def position(self, partnership: Partnership) -> Balance:
        return self._positions.of(partnership)

    def positions(self) -> list[Balance]:
        return [self._positions.of(each) for each in self.partners]

    def _line(self, offer: LineOffer, now_ms: int) -> CreditLine:
        own, partner = self._own.id, offer.partner
        if partner == own:
            raise StatementInvalid("this is our own identity. Use the partner's identity.")
        if len(partner) != len(own) or set(partner) - set("0123456789abcdef"):
            raise StatementInvalid(
                "a partner's identity has 64 hex digits, as shown by its `millrace identity show`"
            )
        owes_max = {partner: Amount(offer.they_owe_max_nano), own: Amount(offer.we_owe_max_nano)}
        first, second = sorted((own, partner))
        return CreditLine(first, second, owes_max[first], owes_max[second], now_ms)

    def _check_alone(self, line: CreditLine, partner: str, now_ms: int) -> None:
        """Allow one line per partner, since with two it could owe twice the limit. Raises StatementInvalid."""
        for each in self.partners:
            holds = each.own_signature is not None and not each.is_ended and now_ms < each.ends_ms
            if holds and each.partner == partner and each.line != line:
                raise StatementInvalid(
                    f"line {each.line.id} with this partner is open. End it before you open another."
                )

    def _sign(self, line: CreditLine, now_ms: int, until_ms: int) -> Record:
        return self._own.say("credit_line", line.id[:_NAME_DIGITS], now_ms, line, now_ms, until_ms)


def _reopened(line: CreditLine, other: CreditLine) -> CreditLine:
    """Return the line as if it was opened when the other one was."""
    return CreditLine(
        line.first, line.second, line.first_owes_max_nano, line.second_owes_max_nano, other.opened_ms
    )
