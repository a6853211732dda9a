"""A counter of a limit that several processes share: this process's slice and its next order. No I/O."""

import math

from gateway.limits.counters import SOON_S, Counter, CounterKey
from gateway.limits.orders import Grant, Order
from gateway.limits.windows import DAY_S, MINUTE_S, boundaries, window
from gateway.quota import Quota

# A slice that no request uses within this time is returned.
IDLE_S = 1.0
# A refusal holds for this time without a new exchange, so that a crowd of refused requests costs nothing.
REFUSED_S = 0.05
# Other processes have this time to return unused amounts before a request is refused.
RECALL_S = 0.1
# No process draws ahead for this time after one lacked what another had.
MODEST_S = 1.0
# A process draws ahead at most the limit divided by this.
_AHEAD_PART = 20
# If a process's lease on a day's or month's limit ended this long ago, the ledger is read instead.
MISSING_S = 5.0
_AT_LEAST_S = {"minute": MINUTE_S, "day": DAY_S, "month": 28 * DAY_S}


class LeasedCounter(Counter):
    """`left` is a slice of the common limit, valid until `ends_s`; a background task renews it.

    While Redis does not answer (`is_alone`), limits on requests, tokens and slots continue with this process's
    share. The share is counted by full UTC minutes, days and months. Limits on money do not continue.
    """

    __slots__ = (
        "_active_s",
        "_available",
        "_before",
        "_held_before",
        "_is_lent",
        "_is_unknown",
        "_least",
        "_ledger_read_s",
        "_modest_s",
        "_need",
        "_pace",
        "_processes",
        "_refused_s",
        "_renew_s",
        "_room_s",
        "_since_s",
        "_taken_before",
        "_untaken",
        "_untaken_before",
        "_wall_ahead_s",
        "is_alone",
        "is_recalled",
        "is_unreadable",
        "ledger",
        "name",
        "recalling_s",
        "wants_ledger",
    )

    def __init__(self, quota: Quota, name: str) -> None:
        super().__init__(CounterKey.of(quota), quota.amount, -math.inf)
        self.name = name
        self.left = 0
        self.is_alone = False
        self.is_recalled = False
        self.is_unreadable = False
        """Whether the ledger has not answered within the time that requests wait."""
        self.wants_ledger = False
        self.ledger = -1
        self._ledger_read_s = 0.0
        self.recalling_s: float | None = None
        self._processes = 1
        self._taken_before = self._untaken = self._untaken_before = 0
        self._wall_ahead_s = 0.0
        self._is_unknown = False
        # Whether Redis may have a lease of this process that is not empty.
        self._is_lent = False
        self._available = quota.amount
        self._need = self._least = 0
        self._pace = self._before = self._held_before = 0
        self._active_s = self._renew_s = self._refused_s = -math.inf
        self._since_s = self._modest_s = -math.inf
        self._room_s = SOON_S

    @property
    def visible(self) -> int:
        return max(0, self.left) + max(0, self._available)

    def set_amount(self, amount: int) -> None:
        """Change the limit; the next order tells the other processes."""
        self._available += amount - self.amount
        self.amount = amount

    def roll(self, now_s: float) -> None:
        """End the lease or, without Redis, the current window."""
        if self.is_alone:
            self._go_on_alone(now_s, self._share - self.held)
        else:
            self.left = min(0, self.left)

    def untake(self, amount: int, entered_s: float, now_s: float) -> None:
        since_s = now_s - MINUTE_S if self.key.span == "minute" else self._since_s
        if entered_s >= since_s:
            self._untaken += amount
            self.left += amount

    def room_s(self, amount: int, now_s: float) -> float:  # noqa: ARG002 - Redis has computed it
        if self.is_alone:
            return max(SOON_S, self.ends_s - now_s) if self.key.span else SOON_S
        return self._room_s

    def is_blank(self, now_s: float) -> bool:
        has_nothing = not self.held and self.left <= 0 and not self._is_lent
        return has_nothing and self.is_reported and now_s >= self.ends_s

    def ask(self, amount: int) -> None:
        """Note that a request waits for this amount, in the measure's unit."""
        self._least = min(self._least, amount) if self._need else amount
        self._need += amount

    def is_refused(self, now_s: float) -> bool:
        """Whether Redis answered a moment ago that nothing is left."""
        return now_s < self._refused_s

    @property
    def is_unknown(self) -> bool:
        """Whether Redis waits for the use that the ledger has recorded."""
        return self._is_unknown

    def forget(self) -> None:
        """Redis has lost this counter: take nothing before the ledger is read."""
        self.ledger = -1
        self._keep_share()
        self._taken_before, self._untaken_before = self.taken - self._under_way, self._untaken
        self.is_alone = self._is_lent = False
        self.left, self.ends_s = min(0, self.left), -math.inf
        self._is_unknown = self.wants_ledger = self.key.span is not None

    def _keep_share(self) -> None:
        """Redis does not know what is left. Without it, this process goes on with what it has left of its share."""
        if self.is_alone:
            self._available = max(0, self.left) * self._processes

    def leave_to_ledger(self) -> None:
        """Stop reporting requests that have ended: the ledger has them by the time it is read."""
        self._taken_before = max(self._taken_before, self.taken - self._under_way)
        self._untaken_before = self._untaken

    def miss_ledger(self) -> None:
        """Note that the ledger did not answer in time."""
        self._is_unknown = False
        self.is_unreadable = True

    def know_ledger(self, used: int, now_s: float) -> None:
        """Note the use that the ledger answered with."""
        self.ledger, self._ledger_read_s = used, now_s
        self.is_unreadable = self.wants_ledger = False

    def go_alone(self, now_s: float, wall_s: float, processes: int) -> None:
        """Without Redis, continue with the last known share of what was left, and of each later window."""
        if self.is_alone or self.key.measure == "spend":
            return
        self.is_alone = True
        self._processes = processes
        self._wall_ahead_s = wall_s - now_s
        known = max(0, self.left) + max(0, self._available) // self._processes
        left = min(self._share, known) if self._is_fresh(now_s) else self._share - self.held
        self._go_on_alone(now_s, left)

    def order(self, now_s: float) -> Order | None:
        """Return the order to send; None if none is needed."""
        if now_s >= self.ends_s and not self.is_alone:
            self.roll(now_s)
        self._keep_pace(now_s)
        if self.is_unreadable:
            self._need = self._least = 0
            return None
        if self._is_unknown and self.ledger < 0:
            self._need = self._least = 0
        if self.is_recalled or self.recalling_s is not None:
            self._modest_s = now_s + MODEST_S
        ahead = 0
        if now_s >= self._modest_s:
            ahead = min(self.amount // _AHEAD_PART, max(4 * self._pace, self._least))
        returns = self.is_recalled or now_s >= self._active_s + IDLE_S
        if not self._is_due(now_s, ahead, returns):
            return None
        if returns and not self.is_alone:
            self.left = min(0, self.left)
        idle = 0 if self.is_alone else max(0, self.left)
        order = Order(
            amount=self.amount,
            taken=self.taken,
            untaken=self._untaken,
            taken_before=self._taken_before,
            untaken_before=self._untaken_before,
            held=self.held,
            idle=idle,
            # The idle amount is too small for a waiting request, which uses it together with the grant.
            need=max(1, self._need - idle) if self._need else 0,
            least=max(1, self._least - idle),
            ahead=0 if returns else max(0, ahead - idle),
            ledger=self.ledger,
            left=self.left,
            is_again=self._is_unknown,
            ledger_age_s=now_s - self._ledger_read_s if self.ledger >= 0 else 0.0,
        )
        self._need = self._least = 0
        self.is_recalled = False
        # Until the answer comes, assume that Redis has granted it.
        self._is_lent = True
        return order

    def accept(self, order: Order, grant: Grant, sent_s: float, now_s: float, *, is_open: bool = True) -> None:
        """Take the grant for an order sent at `sent_s`; it refuses nothing while counters are rebuilt."""
        if not grant.is_known and not order.is_again:
            self.forget()
            return
        if order.ledger >= 0 and not grant.is_ledger_early:
            self.ledger = -1
        self._is_unknown = not grant.is_known
        is_missing = self.key.span != "minute" and grant.ended_s >= MISSING_S
        self.wants_ledger = (self._is_unknown or is_missing) and not grant.is_ledger_early
        # A slice with a lost lease, or that this process took without Redis, is no longer part of the limit.
        kept = 0 if self.is_alone or grant.is_lost else order.idle
        if is_open and grant.is_known:
            self._available = grant.available
        else:
            self._keep_share()
        self.left += grant.granted + kept - order.left
        self._is_lent = order.held + max(0, kept + grant.granted) > 0
        self._before = self.left
        self.is_alone = False
        self._taken_before, self._untaken_before = order.taken, order.untaken
        self._held_before = order.held
        self.ends_s = sent_s + grant.lease_s
        self._renew_s = sent_s
        self._since_s = now_s - grant.age_s
        if order.need and is_open and grant.is_known:
            self._answer(order, grant, now_s)

    def _answer(self, order: Order, grant: Grant, now_s: float) -> None:
        """Serve the waiting request, refuse it at once, or recall unused amounts from other processes."""
        if grant.granted >= order.least > 0:
            self.recalling_s = None
            return
        self._room_s = grant.room_s
        is_elsewhere = grant.available + grant.elsewhere >= order.least
        if is_elsewhere and self.recalling_s is None:
            self.recalling_s = now_s
        if not is_elsewhere or now_s >= (self.recalling_s or now_s) + RECALL_S:
            self.recalling_s = None
            self._refused_s = now_s + REFUSED_S

    def _is_due(self, now_s: float, ahead: int, returns: bool) -> bool:
        has_lease = self.left > 0 or self.held
        return bool(
            self._need
            or self.ledger >= 0
            or self.is_alone
            or not self.is_reported
            # Until the ledger's use, without the requests in flight, is known.
            or (self._is_unknown and self.tickets)
            or (self._is_lent and not has_lease)
            or (self.held and not self._is_lent)
            # Other processes can use amounts that ended requests gave back.
            or self.held < self._held_before
            or (returns and self.left > 0)
            or (has_lease and now_s >= self._renew_s + (self.ends_s - self._renew_s) / 3)
            or (ahead and self.left < ahead // 2)
        )

    def _keep_pace(self, now_s: float) -> None:
        """Update how much requests take per round; a burst is remembered for a few rounds."""
        used = self._before - self.left
        if used > 0 or self._need:
            self._active_s = now_s
        self._pace = max(used, self._pace // 2)
        self._before = self.left

    @property
    def is_reported(self) -> bool:
        return self.taken == self._taken_before and self._untaken == self._untaken_before

    @property
    def _under_way(self) -> int:
        """The amount taken by requests in flight."""
        return self.tickets if self.key.measure == "requests" else 0

    @property
    def _share(self) -> int:
        return max(1, self.amount // self._processes) if self.amount else 0

    def _is_fresh(self, now_s: float) -> bool:
        """Whether the last report belongs to this window."""
        if self.key.span is None:
            return False
        since_s = self._renew_s if self.key.span == "minute" else self._since_s
        return now_s < since_s + _AT_LEAST_S[self.key.span]

    def _go_on_alone(self, now_s: float, left: int) -> None:
        self.left = left
        if self.key.span is None:
            self.ends_s = math.inf
        else:
            self.ends_s = window(self.key.span, now_s + self._wall_ahead_s)[1] - self._wall_ahead_s


def begins(counter: LeasedCounter, wall_s: float) -> tuple[int, int, int, int]:
    """Return the starts of the counter's windows, for processes with another clock."""
    return boundaries(counter.key.span, wall_s) if counter.key.span in ("day", "month") else (0, 0, 0, 0)
