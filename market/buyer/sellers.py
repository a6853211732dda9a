"""Our experience with sellers: outcomes, refusals and latency. Matching uses it."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from market.buyer.store import BuyingStore
from market.protocol.matching.breaker import Recent, is_tripped
from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.track import Tally, Track

KNOWN_AFTER = 20.0
"""A seller leaves the new-seller period after at least this many successful requests..."""
KNOWN_TOKENS = 4000.0
"""...with at least this many tokens in all, because free or empty answers prove nothing..."""
KNOWN_AFTER_S = 24 * 3600.0
"""...and at least this long after its first answer."""
_SELLERS_MAX = 4096


@dataclass(slots=True)
class Seller:
    """One seller, in memory; its tally is also on disk."""

    tally: Tally = field(default_factory=Tally)
    anomalies: int = 0
    tokens: float = 0.0
    """Tokens delivered to us so far."""
    since_s: float | None = None
    """The time of its first answer, in Unix seconds."""
    empty: int = 0
    """Consecutive answers without a token, up to now."""
    audits: Tally = field(default_factory=Tally)
    in_flight: int = 0
    caps: dict[str, LearnedCap] = field(default_factory=dict)
    recent: Recent = field(default_factory=Recent)
    proven_at: str = ""
    """The address at which it last proved its identity."""

    @property
    def track(self) -> Track:
        """Return its track record. Anomalies count as failed audits."""
        audits = self.audits
        return Track(self.tally, Tally(audits.good, audits.bad + self.anomalies, audits.at_s))

    def cap(self, name: str, slots: int) -> LearnedCap:
        """Return what we learned about one of its listings, as long as the listing states the same slots."""
        known = self.caps.get(name)
        if known is None or known.slots != slots:
            known = self.caps[name] = LearnedCap.of(slots)
        return known


class SellerTracker:
    """All known sellers; the least recently used are dropped first."""

    def __init__(
        self,
        store: BuyingStore,
        *,
        clock_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock_s = clock_s
        self.monotonic_s = monotonic_s
        self._known: OrderedDict[str, Seller] = OrderedDict()
        self._changed: dict[str, Seller] = {}
        self.suspended: Mapping[str, str] = {}
        """Sellers we do not buy from until the admin reinstates them, and why; replaced, never changed in place."""
        for row in store.tracks():
            tally = Tally(row.good, row.bad, row.at_s)
            self._known[row.seller] = Seller(tally, row.anomalies, row.tokens or 0.0, row.since_s)

    def of(self, identity: str) -> Seller:
        seller = self._known.setdefault(identity, Seller())
        self._known.move_to_end(identity)
        if len(self._known) > _SELLERS_MAX:
            idle = next((each for each, other in self._known.items() if not other.in_flight), None)
            self._known.pop(idle or "", None)
        return seller

    def broken(self, identities: Iterable[str]) -> set[str]:
        """Return which sellers of one model currently do far worse than the others."""
        now_s = self.monotonic_s()
        signals = {each: self.of(each).recent.signal(now_s) for each in set(identities)}
        tried = {each: signal for each, signal in signals.items() if signal.requests}
        return {
            each
            for each, signal in tried.items()
            if is_tripped(signal, [other for peer, other in tried.items() if peer != each])
        }

    def is_known(self, identity: str) -> bool:
        """Return whether the seller has left the new-seller period: enough went well here for long enough."""
        seller = self.of(identity)
        is_old = seller.since_s is not None and self._clock_s() - seller.since_s >= KNOWN_AFTER_S
        return is_old and seller.tally.good >= KNOWN_AFTER and seller.tokens >= KNOWN_TOKENS

    def answered(self, identity: str, name: str, slots: int, ttft_s: float, tokens: int) -> None:
        """Count a complete answer.

        One empty answer may be right, but earns no credit; a second one in a row fails.
        """
        seller = self.of(identity)
        if not tokens:
            seller.empty += 1
            if seller.empty > 1:
                self.failed(identity)
            return
        seller.empty = 0
        seller.tokens += tokens
        seller.since_s = self._clock_s() if seller.since_s is None else seller.since_s
        seller.caps[name] = seller.cap(name, slots).after_answer(seller.in_flight)
        self._count(identity, seller, ttft_s)

    def failed(self, identity: str) -> None:
        """Count an answer that failed or was incomplete."""
        self._count(identity, self.of(identity), None)

    def was_busy(self, identity: str, name: str, slots: int) -> None:
        """Count a refusal for lack of room: the seller has fewer slots than it states."""
        seller = self.of(identity)
        seller.caps[name] = seller.cap(name, slots).after_refusal(max(1, seller.in_flight))
        self._count(identity, seller, None)

    def flagged(self, identity: str, flags: int) -> None:
        """Count anomalies of an answer, such as padding or an inflated receipt."""
        seller = self.of(identity)
        seller.anomalies += flags
        self._changed[identity] = seller

    def now_ms(self) -> int:
        return int(self._clock_s() * 1000)

    def suspend(self, suspended: Mapping[str, str]) -> None:
        self.suspended = suspended

    def take_audits(self, tallies: Mapping[str, Tally]) -> None:
        """Load earlier audits; a seller without an entry has none."""
        for identity, seller in self._known.items():
            seller.audits = tallies.get(identity, Tally())
        for identity in tallies:
            self.of(identity).audits = tallies[identity]

    def audited(self, identity: str, *, is_good: bool) -> Tally:
        """Count a passed or failed audit and return the new tally; the auditor stores it."""
        seller = self.of(identity)
        seller.audits = seller.audits.after(self._clock_s(), is_good=is_good)
        return seller.audits

    def _count(self, identity: str, seller: Seller, ttft_s: float | None) -> None:
        seller.recent.add(self.monotonic_s(), ttft_s)
        seller.tally = seller.tally.after(self._clock_s(), is_good=ttft_s is not None)
        self._changed[identity] = seller

    def keep(self) -> None:
        """Write changes to disk; slow, call in a thread. A crash may lose the last seconds.

        Raises:
            SQLAlchemyError: the disk does not take it now; the changes are kept for the next call.
        """
        changed, self._changed = self._changed, {}
        try:
            self._write(changed)
        except SQLAlchemyError:
            for identity, seller in changed.items():
                # One by one, because the event loop may be counting meanwhile.
                self._changed.setdefault(identity, seller)
            raise

    def _write(self, changed: Mapping[str, Seller]) -> None:
        for identity, seller in changed.items():
            tally = seller.tally
            self._store.put_track(
                seller=identity,
                good=tally.good,
                bad=tally.bad,
                at_s=tally.at_s,
                anomalies=seller.anomalies,
                tokens=seller.tokens,
                since_s=seller.since_s,
            )
