"""Hold one payer's lease: credits reserved once for many requests, which take parts without asking the ledger.

    amount (reserved in the ledger) = free + reserved (running requests) + spent (ended, not booked yet)

Every event of a lease books the ended requests, resolves the last event's reservation, and reserves again. The
reservation may be parts of several accounts. Which of them pays for a request is only decided at its capture.
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
from accounting.rules.parts import HeldPart, Share, split
from accounting.spending.funding import Funding, FundingSource, at_hand, first_end_ns, left_of
from accounting.spending.lease_renewal import Capture, Draw, LeaseRenewal, fail_draws, refuse, tell_ended

LEASE_NS = 20 * 10**9
"""The duration of a lease, in nanoseconds. Seconds later the reaper releases the lease of a process that died."""
# A lease with less time left than this is renewed.
_RENEWED_NS = 14 * 10**9
# The clocks of machines differ, so no request may reserve from a lease in its last seconds.
_LAST_NS = 5 * 10**9
IDLE_NS = 5 * 10**9
"""After this long without a request, a lease releases its free part, in nanoseconds."""
# Requests that follow sooner than this draw a slice: the worth of `_SLICE_LEAST` requests at first, and of
# # `_SLICE_MOST` at most. A single request draws only what it needs, and leaves nothing reserved when it has
# ended.
_FOLLOWS_NS = 10**9
_SLICE_LEAST = 4
_SLICE_MOST = 16
# If the balance is known, a slice is at most this fraction of it, because others draw from the same accounts.
_SLICE_PART = 4


@dataclass(frozen=True, slots=True)
class Reservation:
    """The credits that a lease's last event reserved. From `until_ns` on, no request may reserve from it."""

    parts: tuple[HeldPart, ...]
    amount_nano: int
    expires_ns: int
    until_ns: int


@dataclass(slots=True)
class Lease:
    """This process's part of a payer's credits.

    `identity` changes if the reaper released the lease first; existing reservations are then void. `spare_nano` is
    what an event in flight leaves free, or None without such an event; no more may be reserved until it is
    answered. Users of a lease hold the lock of `Leases`.
    """

    payer: Payer
    funding: Funding = ()
    identity: str = field(default_factory=lambda: secrets.token_hex(8))
    reservation: Reservation | None = None
    reserved: dict[str, int] = field(default_factory=dict)
    spent: dict[str, int] = field(default_factory=dict)
    reserved_nano: int = 0
    spent_nano: int = 0
    spare_nano: int | None = None
    used_ns: int = 0
    slice_count: int = 0
    draws: list[Draw] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    unanswered: LeaseRenewal | None = None

    def __post_init__(self) -> None:
        self.funding = self.funding or (FundingSource(user_paid(self.payer.user_id)),)

    @property
    def amount_nano(self) -> int:
        return self.reservation.amount_nano if self.reservation else 0

    @property
    def free_nano(self) -> int:
        return self.amount_nano - self.reserved_nano - self.spent_nano

    @property
    def parts(self) -> tuple[HeldPart, ...]:
        return self.reservation.parts if self.reservation else ()

    @property
    def accounts(self) -> set[str]:
        """The accounts that it has drawn from, and those that it would draw from."""
        return {part.account for part in self.parts} | {source.account for source in self.funding}

    @property
    def is_single(self) -> bool:
        """Return whether one account pays for everything. The ledger then checks its balance at each draw."""
        parts, account = self.parts, self.funding[0].account
        return len(self.funding) == 1 and (not parts or (len(parts) == 1 and parts[0].account == account))

    def reserve(self, request_id: str, amount_nano: int, now_ns: int) -> Hold | None:
        """Reserve a part for a request. Return None if too little is free, or the lease may end too soon.

        If the request already has a part, it gets this size, or keeps its own if that is larger: of two requests
        for more, the smaller may be answered last.
        """
        reservation = self.reservation
        if reservation is None or now_ns >= reservation.until_ns:
            return None
        amount_nano = max(amount_nano, self.reserved.get(request_id, 0))
        more_nano = amount_nano - self.reserved.get(request_id, 0)
        if more_nano > reservation.amount_nano - self.reserved_nano - self.spent_nano:
            return None
        if self.spare_nano is not None and more_nano > 0:
            if more_nano > self.spare_nano:
                return None
            self.spare_nano -= more_nano
        self.reserved_nano += more_nano
        self.reserved[request_id] = amount_nano
        self.used_ns = now_ns
        user_id, pool_id, takes_grants, is_own_use = self.payer
        seq, lease, expires_ns = reservation.parts[0].pending_seq, self.identity, reservation.expires_ns
        return Hold(request_id, user_id, amount_nano, seq, expires_ns, lease, pool_id, takes_grants, is_own_use)

    def end(self, request_id: str, charge_nano: int) -> None:
        """End a request with its charge and free the rest of its part. Only the first call counts."""
        amount_nano = self.reserved.pop(request_id, None)
        if amount_nano is None:
            return
        self.reserved_nano -= amount_nano
        if charge_nano:
            self.spent[request_id] = charge_nano
            self.spent_nano += charge_nano

    def renew(
        self,
        now_ns: int,
        available: Mapping[str, int] | None = None,
        *,
        captures_max: int = MAX_USAGES,
        is_final: bool = False,
        is_closing: bool = False,
    ) -> LeaseRenewal | None:
        """Make the next event; None if there is nothing to do. Move what it contains out of the lease's lists.

        `available` is what the funding accounts may spend beside the lease. Draws beyond it wait, in the order of
        arrival, or are refused if the event is final. Without it, all draws wait, except if one account pays: the
        books then check its balance. Draws take a slice with them, except in a final event.

        Raises:
            LedgerError: no event can hold this; the lists are unchanged.
        """
        captures = self.captures[:captures_max]
        knows_one = available is None and self.is_single
        takes_draws = knows_one or available is not None
        draws = self._draws_of_running() if takes_draws else []
        spent_nano = sum(self.spent.get(capture.usage.request_id, 0) for capture in captures)
        kept_nano = self.reserved_nano + self.spent_nano - spent_nano
        funding, short = None, list[Draw]()
        if not knows_one:
            funding = self._at_hand(now_ns, available or {}, captures, kept_nano)
            draws, short = self._granted(draws, _total(funding) - kept_nano, is_final=is_final)
        amount_nano = kept_nano + sum(map(self._more_nano, draws))
        is_alone = not (self.slice_count or self.reserved)
        if draws and not is_final:
            amount_nano += self._slice_nano(draws, now_ns, _spare_nano(funding, amount_nano))
        if not (is_closing or is_alone or now_ns - self.used_ns >= IDLE_NS):
            amount_nano = max(amount_nano, self.amount_nano - spent_nano)
        if funding is not None:
            amount_nano = min(amount_nano, _total(funding))
        amount_nano = max(kept_nano, min(amount_nano, MAX_EVENT_NANO))
        if takes_draws:
            self.draws = draws + short
        is_old = self.reservation is not None and self.reservation.expires_ns - now_ns < _RENEWED_NS
        if not captures and not draws and amount_nano == self.amount_nano and not (is_old and amount_nano):
            return None
        shares = split(amount_nano, funding or [Share(self.funding[0].account, amount_nano)])
        renewal = self._made(captures, draws, shares, now_ns + LEASE_NS)
        self.spare_nano = amount_nano - kept_nano - sum(map(self._more_nano, draws))
        self.captures = self.captures[len(captures) :]
        if takes_draws:
            self.draws = short
        return renewal

    def _made(
        self, captures: list[Capture], draws: list[Draw], shares: tuple[Share, ...], expires_ns: int
    ) -> LeaseRenewal:
        ended = [(capture.bill, capture.usage) for capture in captures]
        posting = lease(f"lease-{secrets.token_hex(12)}", self.parts, ended, shares, expires_ns=expires_ns)
        return LeaseRenewal(posting, captures, draws, shares, expires_ns)

    def renewed(self, renewal: LeaseRenewal, posted: Posted, now_ns: int) -> None:
        """Adopt what a booked event reserved, and remove what it charged from `spent`."""
        self.reservation = self.spare_nano = None
        if renewal.shares:
            seqs = posted.transfer_seqs[-len(renewal.shares) :]
            parts = tuple(
                HeldPart(share.account, share.amount_nano, seq)
                for share, seq in zip(renewal.shares, seqs, strict=True)
            )
            until_ns = renewal.expires_ns - _LAST_NS
            ends_ns = first_end_ns(self.funding, parts, now_ns)
            until_ns = until_ns if ends_ns is None else min(until_ns, ends_ns)
            self.reservation = Reservation(parts, _total(renewal.shares), renewal.expires_ns, until_ns)
        for capture in renewal.captures:
            self.forget(capture.usage.request_id)

    def grant(self, draw: Draw, now_ns: int) -> Hold | None:
        """Give a draw its part of the new reservation; None if its request no longer needs it."""
        if draw.grows and draw.request_id not in self.reserved:
            return None
        return self.reserve(draw.request_id, draw.amount_nano, now_ns)

    def forget(self, request_id: str) -> None:
        """Remove an ended request's charge from `spent`, because it is booked."""
        self.spent_nano -= self.spent.pop(request_id, 0)

    def denied(self) -> None:
        """Note that the ledger refused the event: the earlier reservation stands."""
        self.unanswered = self.spare_nano = None

    def lose(self) -> None:
        """Drop everything, because another process resolved the lease: nothing is reserved any more."""
        self.identity = secrets.token_hex(8)
        self.reservation = None
        self.reserved.clear()
        self.spent.clear()
        self.reserved_nano = self.spent_nano = 0

    def give_up(self, error: LedgerError) -> None:
        """Fail one capture, or else all draws, because the next event cannot be booked."""
        if self.captures:
            capture = self.captures.pop(0)
            self.forget(capture.usage.request_id)
            capture.future.set_exception(error)
            return
        fail_draws(self.draws, error)
        self.draws.clear()

    @property
    def is_empty(self) -> bool:
        return not (
            self.reservation or self.draws or self.captures or self.unanswered or self.reserved or self.spent
        )

    def _draws_of_running(self) -> list[Draw]:
        """Return the draws of running requests, and answer those that want more for an ended request."""
        running = []
        for draw in self.draws:
            if draw.grows and draw.request_id not in self.reserved:
                tell_ended(draw)
            else:
                running.append(draw)
        return running

    def _more_nano(self, draw: Draw) -> int:
        """Return what a draw needs beyond its request's part."""
        return max(0, draw.amount_nano - self.reserved.get(draw.request_id, 0))

    def _granted(self, draws: Sequence[Draw], left_nano: int, *, is_final: bool) -> tuple[list[Draw], list[Draw]]:
        """Return the draws that `left_nano` covers, and the others, unless these are refused."""
        granted, short = [], []
        for draw in draws:
            more_nano = self._more_nano(draw)
            if more_nano <= left_nano:
                left_nano -= more_nano
                granted.append(draw)
            elif is_final:
                refuse(draw, self.funding[-1].account, more_nano, left_nano)
            else:
                short.append(draw)
        return granted, short

    def _at_hand(
        self, now_ns: int, available: Mapping[str, int], captures: Sequence[Capture], kept_nano: int
    ) -> list[Share]:
        left = left_of(self.parts, sum(capture.charge_nano for capture in captures))
        funding = at_hand(self.funding, left, available, kept_nano=kept_nano, now_ns=now_ns)
        if (missing_nano := kept_nano - _total(funding)) > 0:
            # This only happens if something is captured twice. The ledger has to refuse that.
            funding.append(Share(self.funding[-1].account, missing_nano))
        return funding

    def _slice_nano(self, draws: Sequence[Draw], now_ns: int, spare_nano: int) -> int:
        """Return what to draw beyond the need: more if draws follow soon, and if more is running at once."""
        if len(draws) == 1 and now_ns - self.used_ns >= _FOLLOWS_NS:
            self.slice_count = 0
            return 0
        self.slice_count = min(_SLICE_MOST, max(_SLICE_LEAST, 2 * self.slice_count))
        running_nano = self.reserved_nano + sum(draw.amount_nano for draw in draws)
        slice_nano = self.slice_count * max(draw.amount_nano for draw in draws) + running_nano
        return min(slice_nano, spare_nano)


def _total(shares: Sequence[Share]) -> int:
    return sum(share.amount_nano for share in shares)


def _spare_nano(funding: Sequence[Share] | None, amount_nano: int) -> int:
    """Return how large a slice may be, given the known balance beyond the needed amount."""
    return MAX_EVENT_NANO if funding is None else max(0, _total(funding) - amount_nano) // _SLICE_PART
