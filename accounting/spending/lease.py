"""One user's lease: credits put aside once for many requests, which reserve parts of it without asking the books.

    put aside (amount) = free + reserved (requests that run) + spent (ended, not booked yet)

Every event of a lease books what has ended, resolves what the last one put aside, and puts aside anew.
"""

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from accounting.chart import user_paid
from accounting.errors import InsufficientCredit, LedgerError
from accounting.ledger.postings import MAX_USAGES, Posted, Posting, UsageRecord
from accounting.money import MAX_EVENT_NANO
from accounting.rules.burst import lease
from accounting.rules.held import CloudBill, Hold

LEASE_NS = 180 * 10**9
"""How long a lease lasts, in nanoseconds. Of a process that died, the reaper gives it back then."""
_RENEWED_NS = 120 * 10**9
# Clocks of machines differ: in its last minute nothing is promised on a lease.
_LAST_NS = 60 * 10**9
IDLE_NS = 5 * 10**9
"""After so long without a request what is free of a lease is given back, in nanoseconds."""
# Requests that follow one another sooner than this draw a slice: worth so many of them at first, then at most. One
# that comes alone draws what it needs, and leaves nothing aside when it has ended.
_FOLLOWS_NS = 10**9
_SLICE_LEAST = 4
_SLICE_MOST = 16


@dataclass(frozen=True, slots=True)
class Draw:
    """A request that the free part does not cover; the future has its hold."""

    request_id: str
    amount_nano: int
    future: "Future[Hold]"


@dataclass(frozen=True, slots=True)
class Capture:
    """An ended request that the clerk wants booked. The bill charges no more than was reserved."""

    bill: CloudBill | None
    usage: UsageRecord
    future: "Future[Posted | None]"

    @property
    def charge_nano(self) -> int:
        return self.bill.charge_nano if self.bill else 0


@dataclass(slots=True)
class Roll:
    """One event of a lease, made and not answered yet: what it books, what it grants, what it puts aside."""

    posting: Posting
    captures: list[Capture]
    draws: list[Draw]
    amount_nano: int
    expires_ns: int

    def fail(self, error: LedgerError) -> None:
        """Tell all who wait for it; some may have been told before."""
        fail_draws(self.draws, error)
        fail_captures(self.captures, error)


def fail_draws(draws: Sequence[Draw], error: LedgerError) -> None:
    for draw in draws:
        if not draw.future.done():
            draw.future.set_exception(error)


def fail_captures(captures: Sequence[Capture], error: LedgerError) -> None:
    for capture in captures:
        if not capture.future.done():
            capture.future.set_exception(error)


@dataclass(slots=True)
class Lease:
    """What this process has of a user's credits. `identity` changes when the reaper was faster: parts taken before
    are parts of nothing then. Whoever uses a lease holds the lock of `Leases`."""

    user_id: str
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    held: Hold | None = None
    reserved: dict[str, int] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    reserved_nano: int = 0
    spent_nano: int = 0
    used_ns: int = 0
    slice_count: int = 0
    draws: list[Draw] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    unanswered: Roll | None = None

    @property
    def amount_nano(self) -> int:
        return self.held.amount_nano if self.held else 0

    @property
    def free_nano(self) -> int:
        return self.amount_nano - self.reserved_nano - self.spent_nano

    def reserve(self, request_id: str, amount_nano: int, now_ns: int) -> Hold | None:
        """Take a part; None where there is too little, or where it may not last."""
        held = self.held
        if held is None or amount_nano > self.free_nano or now_ns >= held.expires_ns - _LAST_NS:
            return None
        self.reserved_nano += amount_nano - self.reserved.get(request_id, 0)
        self.reserved[request_id] = amount_nano
        self.used_ns = now_ns
        return Hold(request_id, self.user_id, amount_nano, held.pending_seq, held.expires_ns, self.identity)

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
        *,
        captures_max: int = MAX_USAGES,
        affordable_nano: int | None = None,
        is_closing: bool = False,
    ) -> Roll | None:
        """Make the next event; None where there is nothing to do. What it takes is no longer in the lease's lists.

        `affordable_nano` is the most that can be put aside: draws beyond it are refused, first come first served.

        Raises:
            LedgerError: no event may hold this; the lists are as they were.
        """
        captures, draws = self.captures[:captures_max], self.draws
        spent_nano = sum(self.spent.get(capture.usage.request_id, 0) for capture in captures)
        kept_nano = self.reserved_nano + self.spent_nano - spent_nano
        if affordable_nano is not None:
            draws = _granted(draws, affordable_nano - kept_nano, user_paid(self.user_id))
        wanted_nano = sum(draw.amount_nano for draw in draws)
        is_alone = not (self.slice_count or self.reserved)
        is_idle = is_closing or is_alone or now_ns - self.used_ns >= IDLE_NS
        amount_nano = kept_nano + wanted_nano
        if draws and affordable_nano is None:
            amount_nano += self._slice_nano(draws, now_ns)
        if not is_idle:
            amount_nano = max(amount_nano, self.amount_nano - spent_nano)
        if affordable_nano is not None:
            amount_nano = max(kept_nano, min(amount_nano, affordable_nano))
        amount_nano = min(amount_nano, max(MAX_EVENT_NANO, kept_nano))
        self.draws = draws
        is_old = self.held is not None and self.held.expires_ns - now_ns < _RENEWED_NS
        if not captures and not draws and amount_nano == self.amount_nano and not (is_old and amount_nano):
            return None
        ended = [(capture.bill, capture.usage) for capture in captures]
        expires_ns = now_ns + LEASE_NS
        name = f"lease-{secrets.token_hex(12)}"
        posting = lease(
            name, self.held, ended, user_id=self.user_id, amount_nano=amount_nano, expires_ns=expires_ns
        )
        self.captures, self.draws = self.captures[len(captures) :], []
        return Roll(posting, captures, draws, amount_nano, expires_ns)

    def rolled(self, roll: Roll, posted: Posted, now_ns: int) -> list[Hold]:
        """The books have taken the event; returns the holds of those who drew."""
        self.held = None
        if roll.amount_nano:
            seq = posted.transfer_seqs[-1]
            self.held = Hold(roll.posting.ref, self.user_id, roll.amount_nano, seq, roll.expires_ns)
        for capture in roll.captures:
            self.forget(capture.usage.request_id)
        granted = [self.reserve(draw.request_id, draw.amount_nano, now_ns) for draw in roll.draws]
        return [hold for hold in granted if hold is not None]

    def forget(self, request_id: str) -> None:
        """What an ended request came to is booked."""
        self.spent_nano -= self.spent.pop(request_id, 0)

    def lose(self) -> None:
        """Somebody else resolved it: nothing is put aside any more, for nobody."""
        self.identity = secrets.token_hex(8)
        self.held = None
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
        for draw in self.draws:
            draw.future.set_exception(error)
        self.draws.clear()

    @property
    def is_empty(self) -> bool:
        return not (self.held or self.draws or self.captures or self.unanswered or self.reserved or self.spent)

    def _slice_nano(self, draws: Sequence[Draw], now_ns: int) -> int:
        """More than what is asked for: by how soon one draw followed another, and by how much runs at once."""
        if len(draws) == 1 and now_ns - self.used_ns >= _FOLLOWS_NS:
            self.slice_count = 0
            return 0
        self.slice_count = min(_SLICE_MOST, max(_SLICE_LEAST, 2 * self.slice_count))
        running_nano = self.reserved_nano + sum(draw.amount_nano for draw in draws)
        return self.slice_count * max(draw.amount_nano for draw in draws) + running_nano


def _granted(draws: Sequence[Draw], left_nano: int, account: str) -> list[Draw]:
    granted = []
    for draw in draws:
        if draw.amount_nano <= left_nano:
            left_nano -= draw.amount_nano
            granted.append(draw)
        else:
            draw.future.set_exception(InsufficientCredit(account, draw.amount_nano, max(0, left_nano)))
    return granted
