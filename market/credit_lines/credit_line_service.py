"""The owner's actions on credit lines: offer, sign, acknowledge, end. Repeating any of it changes nothing."""

from dataclasses import dataclass, replace
from pathlib import Path

from market.credit_lines.balance import Balance, Balances
from market.credit_lines.export import is_address, read, written
from market.credit_lines.friends import Friends
from market.credit_lines.friendship import Friendship
from market.errors import StatementInvalid
from market.network.identity import OwnIdentity
from market.protocol.channels.credit_line import CreditLine
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import LIFETIME_MAX_MS, Record

_NAME_DIGITS = 32


@dataclass(frozen=True, slots=True)
class LineOffer:
    """The most that each side may owe the other, in nano-USD, and how long the line lasts."""

    friend: str
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
        self.friends = Friends(folder, own)

    def invite(self, offer: LineOffer, now_ms: int) -> Friendship:
        """Sign a line; return the unanswered one if the same was offered before."""
        line = self._line(offer, now_ms)
        for each in self.friends:
            is_same = _reopened(each.line, line) == line
            if (
                is_same
                and each.own_signature
                and not each.friend_signature
                and not each.is_ended
                and now_ms < each.ends_ms
            ):
                return each
        self._check_alone(line, offer.friend, now_ms)
        own_signature = self._sign(line, now_ms, now_ms + offer.lasts_ms)
        return self.friends.keep(Friendship(line, self._own.id, own_signature))

    def heard(self, text: str) -> Friendship:
        """Return what a friend's text says, checked; nothing is stored.

        Raises StatementInvalid if the friend has not signed it.
        """
        told = self.friends.heard(read(text))
        if told.friend_signature is None:
            raise StatementInvalid("the friend has not signed this credit line")
        return told

    def known(self, told: Friendship) -> Friendship | None:
        return self.friends.find(told.line.id)

    def accept(self, told: Friendship, now_ms: int) -> tuple[Friendship, bool]:
        """Store what a friend says, and sign the line if we have not; also return whether we did.

        Raises StatementInvalid if the friend's offer has expired.
        """
        known = self.known(told)
        merged = known.merged(told) if known else told
        if merged.own_signature is not None or merged.friend_signature is None:
            return self.friends.keep(merged), False
        until_ms = merged.friend_signature.expires_ms or 0
        if until_ms <= now_ms:
            raise StatementInvalid("the friend's offer has expired. Ask for another one.")
        self._check_alone(merged.line, merged.friend, now_ms)
        # Clocks may differ: our signature must not make a record that lasts longer than allowed.
        own_signature = self._sign(
            merged.line, now_ms, min(until_ms, now_ms + (LIFETIME_MAX_MS["credit_line"] or 0))
        )
        return self.friends.keep(replace(merged, own_signature=own_signature)), True

    def acknowledge(self, friendship: Friendship, paid_nano: int, now_ms: int) -> Friendship:
        """Sign how much the friend has paid in all, in nano-USD."""
        body = friendship.acknowledgement(paid_nano)
        if friendship.paid_nano(friendship.friend) == paid_nano:
            return friendship
        name = f"{friendship.line.id[:_NAME_DIGITS]}.paid"
        record = self._own.say("payment", name, now_ms, body, now_ms)
        return self.friends.keep(replace(friendship, payments=(*friendship.payments, record)))

    def end(self, friendship: Friendship) -> Friendship:
        return self.friends.keep(replace(friendship, is_ended=True))

    def text(self, friendship: Friendship, url: str = "") -> str:
        """Return the text that tells the friend all we know. `url` is where we sell.

        Raises:
            StatementInvalid: the address is invalid.
        """
        address = url.strip().rstrip("/")
        if not is_address(address):
            raise StatementInvalid("the address must be like https://mill.example, without a path")
        return written(self.friends.told(friendship, address))

    def position(self, friendship: Friendship) -> Balance:
        return self._positions.of(friendship)

    def positions(self) -> list[Balance]:
        return [self._positions.of(each) for each in self.friends]

    def _line(self, offer: LineOffer, now_ms: int) -> CreditLine:
        own, friend = self._own.id, offer.friend
        if friend == own:
            raise StatementInvalid("this is our own identity. Use the friend's identity.")
        if len(friend) != len(own) or set(friend) - set("0123456789abcdef"):
            raise StatementInvalid(
                "a friend's identity has 64 hex digits, as shown by its `millrace identity show`"
            )
        owes_max = {friend: Amount(offer.they_owe_max_nano), own: Amount(offer.we_owe_max_nano)}
        first, second = sorted((own, friend))
        return CreditLine(first, second, owes_max[first], owes_max[second], now_ms)

    def _check_alone(self, line: CreditLine, friend: str, now_ms: int) -> None:
        """Allow one line per friend, since with two it could owe twice the limit. Raises StatementInvalid."""
        for each in self.friends:
            holds = each.own_signature is not None and not each.is_ended and now_ms < each.ends_ms
            if holds and each.friend == friend and each.line != line:
                raise StatementInvalid(
                    f"line {each.line.id} with this friend is open. End it before you open another."
                )

    def _sign(self, line: CreditLine, now_ms: int, until_ms: int) -> Record:
        return self._own.say("credit_line", line.id[:_NAME_DIGITS], now_ms, line, now_ms, until_ms)


def _reopened(line: CreditLine, other: CreditLine) -> CreditLine:
    """Return the line as if it was opened when the other one was."""
    return CreditLine(
        line.first, line.second, line.first_owes_max_nano, line.second_owes_max_nano, other.opened_ms
    )
