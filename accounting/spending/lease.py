"""One payer's lease: credits put aside once for many requests, which reserve parts of it without asking the books.

    put aside (amount) = free + reserved (requests that run) + spent (ended, not booked yet)

Every event of a lease books what has ended, resolves what the last one put aside, and puts aside anew. What is put
aside may be parts of several accounts; which request is paid with which of them is only said when it is captured.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from accounting.chart import user_paid
from accounting.errors import LedgerError
from accounting.ledger.postings import MAX_USAGES, Posted
from accounting.money import MAX_EVENT_NANO
from accounting.rules.burst import lease
from accounting.rules.held import Hold, Payer
from accounting.rules.parts import Part, Share, split
from accounting.spending.purse import Purse, Source, at_hand, first_end_ns, left_of
from accounting.spending.roll import Capture, Draw, Roll, fail_draws, refuse, tell_ended

LEASE_NS = 20 * 10**9
"""How long a lease lasts, in nanoseconds. The reaper gives back that of a process that died, seconds later."""
# One that has less left than this is renewed.
_RENEWED_NS = 14 * 10**9
# Clocks of machines differ: in its last seconds nothing is promised on a lease.
_LAST_NS = 5 * 10**9
IDLE_NS = 5 * 10**9
"""After so long without a request what is free of a lease is given back, in nanoseconds."""
# Requests that follow one another sooner than this draw a slice: worth so many of them at first, then at most. One
# that comes alone draws what it needs, and leaves nothing aside when it has ended.
_FOLLOWS_NS = 10**9
_SLICE_LEAST = 4
_SLICE_MOST = 16
# Where it is known how much there is, a slice is at most this part of it: others draw from the same accounts.
_SLICE_PART = 4


@dataclass(frozen=True, slots=True)
class Aside:
    """What a lease's last event put aside. From `until_ns` on nothing more is promised of it."""

    parts: tuple[Part, ...]
    amount_nano: int
    expires_ns: int
    until_ns: int


@dataclass(slots=True)
class Lease:
    """What this process has of a payer's credits. `identity` changes when the reaper was faster: what requests had
    reserved is a part of nothing then. `spare_nano` is what an event that is under way leaves free, None where
    none is: no more may be reserved until it is answered. Whoever uses a lease holds the lock of `Leases`."""

    payer: Payer
    purse: Purse = ()
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    aside: Aside | None = None
    reserved: dict[str, int] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    reserved_nano: int = 0
    spent_nano: int = 0
    spare_nano: int | None = None
    used_ns: int = 0
    slice_count: int = 0
    draws: list[Draw] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    unanswered: Roll | None = None

    def __post_init__(self) -> None:
        self.purse = self.purse or (Source(user_paid(self.payer.user_id)),)

    @property
    def amount_nano(self) -> int:
        return self.aside.amount_nano if self.aside else 0

    @property
    def free_nano(self) -> int:
        return self.amount_nano - self.reserved_nano - self.spent_nano

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.aside.parts if self.aside else ()

    @property
    def accounts(self) -> set[str]:
        """Those it has drawn from, and those it would draw from."""
        return {part.account for part in self.parts} | {source.account for source in self.purse}

    @property
    def is_single(self) -> bool:
        """Whether one account pays for everything: what it has, the books say when it is drawn from."""
        parts, account = self.parts, self.purse[0].account
        return len(self.purse) == 1 and (not parts or (len(parts) == 1 and parts[0].account == account))

    def reserve(self, request_id: str, amount_nano: int, now_ns: int) -> Hold | None:
        """Take a part; None where there is too little, or where it may not last.

        A request that has a part already has one of this size from then on, or keeps its own where that is larger:
        of two wishes for more, the smaller may be answered last.
        """
        aside = self.aside
        if aside is None or now_ns >= aside.until_ns:
            return None
        amount_nano = max(amount_nano, self.reserved.get(request_id, 0))
        more_nano = amount_nano - self.reserved.get(request_id, 0)
        if more_nano > aside.amount_nano - self.reserved_nano - self.spent_nano:
            return None
        if self.spare_nano is not None and more_nano > 0:
            if more_nano > self.spare_nano:
                return None
            self.spare_nano -= more_nano
        self.reserved_nano += more_nano
        self.reserved[request_id] = amount_nano
        self.used_ns = now_ns
        user_id, pool_id, takes_lots, is_own_use = self.payer
        seq, lease, expires_ns = aside.parts[0].pending_seq, self.identity, aside.expires_ns
        return Hold(request_id, user_id, amount_nano, seq, expires_ns, lease, pool_id, takes_lots, is_own_use)

    def end(self, request_id: str, charge_nano: int) -> None:
        """A request came to so much: the rest of its part is free again. Only the first word counts."""
        amount_nano = self.reserved.pop(request_id, None)
        if amount_nano is None:
            return
        self.reserved_nano -= amount_nano
        if charge_nano:
            self.spent[request_id] = charge_nano
            self.spent_nano += charge_nano

    def roll(
        self,
        now_ns: int,
        available: Mapping[str, int] | None = None,
        *,
        captures_max: int = MAX_USAGES,
        is_final: bool = False,
        is_closing: bool = False,
    ) -> Roll | None:
        """Make the next event; None where there is nothing to do. What it takes is no longer in the lease's lists.

        `available` is what may be spent of the purse's accounts beside the lease: draws beyond it wait, first come
        first served, and are refused where the event is final. Without it all draws wait, unless there is one
        account that pays: then the books say whether that has as much. Draws take a slice with them, but none of a
        final event.

        Raises:
            LedgerError: no event may hold this; the lists are as they were.
        """
        captures = self.captures[:captures_max]
        knows_one = available is None and self.is_single
        takes_draws = knows_one or available is not None
        draws = self._draws_of_running() if takes_draws else []
        spent_nano = sum(self.spent.get(capture.usage.request_id, 0) for capture in captures)
        kept_nano = self.reserved_nano + self.spent_nano - spent_nano
        purse, short = None, list[Draw]()
        if not knows_one:
            purse = self._at_hand(now_ns, available or {}, captures, kept_nano)
            draws, short = self._granted(draws, _total(purse) - kept_nano, is_final=is_final)
        amount_nano = kept_nano + sum(map(self._more_nano, draws))
        is_alone = not (self.slice_count or self.reserved)
        if draws and not is_final:
            amount_nano += self._slice_nano(draws, now_ns, _spare_nano(purse, amount_nano))
        if not (is_closing or is_alone or now_ns - self.used_ns >= IDLE_NS):
            amount_nano = max(amount_nano, self.amount_nano - spent_nano)
        if purse is not None:
            amount_nano = min(amount_nano, _total(purse))
        amount_nano = max(kept_nano, min(amount_nano, MAX_EVENT_NANO))
        if takes_draws:
            self.draws = draws + short
        is_old = self.aside is not None and self.aside.expires_ns - now_ns < _RENEWED_NS
        if not captures and not draws and amount_nano == self.amount_nano and not (is_old and amount_nano):
            return None
        shares = split(amount_nano, purse or [Share(self.purse[0].account, amount_nano)])
        roll = self._made(captures, draws, shares, now_ns + LEASE_NS)
        self.spare_nano = amount_nano - kept_nano - sum(map(self._more_nano, draws))
        self.captures = self.captures[len(captures) :]
        if takes_draws:
            self.draws = short
        return roll

    def _made(
        self, captures: list[Capture], draws: list[Draw], shares: tuple[Share, ...], expires_ns: int
    ) -> Roll:
        ended = [(capture.bill, capture.usage) for capture in captures]
        posting = lease(f"lease-{secrets.token_hex(12)}", self.parts, ended, shares, expires_ns=expires_ns)
        return Roll(posting, captures, draws, shares, expires_ns)

    def rolled(self, roll: Roll, posted: Posted, now_ns: int) -> None:
        """The books have taken the event: what it put aside is the lease's, what it booked is spent no more."""
        self.aside = self.spare_nano = None
        if roll.shares:
            seqs = posted.transfer_seqs[-len(roll.shares) :]
            parts = tuple(
                Part(share.account, share.amount_nano, seq) for share, seq in zip(roll.shares, seqs, strict=True)
            )
            until_ns = roll.expires_ns - _LAST_NS
            ends_ns = first_end_ns(self.purse, parts, now_ns)
            until_ns = until_ns if ends_ns is None else min(until_ns, ends_ns)
            self.aside = Aside(parts, _total(roll.shares), roll.expires_ns, until_ns)
        for capture in roll.captures:
            self.forget(capture.usage.request_id)

    def grant(self, draw: Draw, now_ns: int) -> Hold | None:
        """Give a draw its part out of what was put aside for it; None where its request has no use for it now."""
        if draw.grows and draw.request_id not in self.reserved:
            return None
        return self.reserve(draw.request_id, draw.amount_nano, now_ns)

    def forget(self, request_id: str) -> None:
        """What an ended request came to is booked."""
        self.spent_nano -= self.spent.pop(request_id, 0)

    def denied(self) -> None:
        """The books have not taken the event: what was put aside before still is."""
        self.unanswered = self.spare_nano = None

    def lose(self) -> None:
        """Somebody else resolved it: nothing is put aside any more, for nobody."""
        self.identity = secrets.token_hex(8)
        self.aside = None
        self.reserved.clear()
        self.spent.clear()
        self.reserved_nano = self.spent_nano = 0

    def give_up(self, error: LedgerError) -> None:
        """Nothing of its next event can be booked: the first capture fails, or else the draws."""
        if self.captures:
            capture = self.captures.pop(0)
            self.forget(capture.usage.request_id)
            capture.future.set_exception(error)
            return
        fail_draws(self.draws, error)
        self.draws.clear()

    @property
    def is_empty(self) -> bool:
        return not (self.aside or self.draws or self.captures or self.unanswered or self.reserved or self.spent)

    def _draws_of_running(self) -> list[Draw]:
        """Without those that want more for a request that has ended, which are told so."""
        running = []
        for draw in self.draws:
            if draw.grows and draw.request_id not in self.reserved:
                tell_ended(draw)
            else:
                running.append(draw)
        return running

    def _more_nano(self, draw: Draw) -> int:
        """What a draw needs beside what its request has."""
        return max(0, draw.amount_nano - self.reserved.get(draw.request_id, 0))

    def _granted(self, draws: Sequence[Draw], left_nano: int, *, is_final: bool) -> tuple[list[Draw], list[Draw]]:
        """Return the draws that so much suffices for, and the others, unless these are refused."""
        granted, short = [], []
        for draw in draws:
            more_nano = self._more_nano(draw)
            if more_nano <= left_nano:
                left_nano -= more_nano
                granted.append(draw)
            elif is_final:
                refuse(draw, self.purse[-1].account, more_nano, left_nano)
            else:
                short.append(draw)
        return granted, short

    def _at_hand(
        self, now_ns: int, available: Mapping[str, int], captures: Sequence[Capture], kept_nano: int
    ) -> list[Share]:
        left = left_of(self.parts, sum(capture.charge_nano for capture in captures))
        purse = at_hand(self.purse, left, available, kept_nano=kept_nano, now_ns=now_ns)
        if (missing_nano := kept_nano - _total(purse)) > 0:
            # Only where something is captured twice, which the books have to say.
            purse.append(Share(self.purse[-1].account, missing_nano))
        return purse

    def _slice_nano(self, draws: Sequence[Draw], now_ns: int, spare_nano: int) -> int:
        """More than what is asked for: by how soon one draw followed another, and by how much runs at once."""
        if len(draws) == 1 and now_ns - self.used_ns >= _FOLLOWS_NS:
            self.slice_count = 0
            return 0
        self.slice_count = min(_SLICE_MOST, max(_SLICE_LEAST, 2 * self.slice_count))
        running_nano = self.reserved_nano + sum(draw.amount_nano for draw in draws)
        slice_nano = self.slice_count * max(draw.amount_nano for draw in draws) + running_nano
        return min(slice_nano, spare_nano)


def _total(shares: Sequence[Share]) -> int:
    return sum(share.amount_nano for share in shares)


def _spare_nano(purse: Sequence[Share] | None, amount_nano: int) -> int:
    """How large a slice may be, of what is known to be there beside the amount that is needed."""
    return MAX_EVENT_NANO if purse is None else max(0, _total(purse) - amount_nano) // _SLICE_PART
