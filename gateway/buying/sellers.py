"""How sellers have been doing with us: outcomes, refusals, how soon they begin; what matching rests on."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import quantiles

from sqlalchemy.exc import SQLAlchemyError

from gateway.buying.store import Store
from market.matching.breaker import Recent, is_tripped
from market.matching.caps import LearnedCap
from market.matching.track import Tally, Track

KNOWN_AFTER = 20.0
"""So many requests must have gone well before a seller counts as no newcomer any more..."""
KNOWN_TOKENS = 4000.0
"""...with so many tokens in all, for what costs nothing shows nothing..."""
KNOWN_AFTER_S = 24 * 3600.0
"""...and so long after the first of them."""
_SELLERS_MAX = 4096
_BEGINNINGS = 64


@dataclass(slots=True)
class Seller:
    """One seller, in memory; its tally is on disk too."""

    tally: Tally = field(default_factory=Tally)
    anomalies: int = 0
    tokens: float = 0.0
    """Delivered to us so far."""
    since_s: float | None = None
    """When it first answered."""
    empty: int = 0
    """Answers without a token, one after the other, just now."""
    audits: Tally = field(default_factory=Tally)
    in_flight: int = 0
    caps: dict[str, LearnedCap] = field(default_factory=dict)
    recent: Recent = field(default_factory=Recent)
    beginnings_s: deque[float] = field(default_factory=lambda: deque(maxlen=_BEGINNINGS))
    proven_at: str = ""
    """The address at which it has shown that it is there."""

    @property
    def track(self) -> Track:
        """Anomalies count as audits that it failed."""
        audits = self.audits
        return Track(self.tally, Tally(audits.good, audits.bad + self.anomalies, audits.at_s))

    @property
    def ttft_p90_s(self) -> float:
        if len(self.beginnings_s) < 2:
            return max(self.beginnings_s, default=0.0)
        return quantiles(self.beginnings_s, n=10)[-1]

    def cap(self, name: str, slots: int) -> LearnedCap:
        """What is known of one of its listings, as long as that says the same."""
        known = self.caps.get(name)
        if known is None or known.slots != slots:
            known = self.caps[name] = LearnedCap.of(slots)
        return known


class Sellers:
    """Remembers them, the least recently used going first."""

    def __init__(
        self,
        store: Store,
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
        """From whom nothing is bought until the owner says so, and why; replaced, never changed."""
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
        """Who of those who sell one model does far worse than the others just now."""
        now_s = self.monotonic_s()
        signals = {each: self.of(each).recent.signal(now_s) for each in set(identities)}
        asked = {each: signal for each, signal in signals.items() if signal.asked}
        return {
            each
            for each, signal in asked.items()
            if is_tripped(signal, [other for peer, other in asked.items() if peer != each])
        }

    def is_known(self, identity: str) -> bool:
        """Whether enough has gone well here for long enough: it is no newcomer."""
        seller = self.of(identity)
        is_old = seller.since_s is not None and self._clock_s() - seller.since_s >= KNOWN_AFTER_S
        return is_old and seller.tally.good >= KNOWN_AFTER and seller.tokens >= KNOWN_TOKENS

    def answered(self, identity: str, name: str, slots: int, ttft_s: float, tokens: int) -> None:
        """It answered to the end. An answer without a token may be right, once: it is nothing to its credit."""
        seller = self.of(identity)
        if not tokens:
            seller.empty += 1
            if seller.empty > 1:
                self.failed(identity)
            return
        seller.empty = 0
        seller.tokens += tokens
        seller.since_s = self._clock_s() if seller.since_s is None else seller.since_s
        seller.beginnings_s.append(ttft_s)
        seller.caps[name] = seller.cap(name, slots).after_answer(seller.in_flight)
        self._count(identity, seller, ttft_s)

    def failed(self, identity: str) -> None:
        """It did not answer, or not to the end."""
        self._count(identity, self.of(identity), None)

    def was_busy(self, identity: str, name: str, slots: int) -> None:
        """It refused for want of room: it has less than it says."""
        seller = self.of(identity)
        seller.caps[name] = seller.cap(name, slots).after_refusal(max(1, seller.in_flight))
        self._count(identity, seller, None)

    def flagged(self, identity: str, flags: int) -> None:
        """Something about its answer was odd: padding, an inflated receipt."""
        seller = self.of(identity)
        seller.anomalies += flags
        self._changed[identity] = seller

    def now_ms(self) -> int:
        return int(self._clock_s() * 1000)

    def suspend(self, suspended: Mapping[str, str]) -> None:
        self.suspended = suspended

    def take_audits(self, tallies: Mapping[str, Tally]) -> None:
        """Know of earlier audits; whoever is not in it has none."""
        for identity, seller in self._known.items():
            seller.audits = tallies.get(identity, Tally())
        for identity in tallies:
            self.of(identity).audits = tallies[identity]

    def audited(self, identity: str, *, is_good: bool) -> Tally:
        """It has passed an audit, or failed it; whoever audits writes the tally down."""
        seller = self.of(identity)
        seller.audits = seller.audits.after(self._clock_s(), is_good=is_good)
        return seller.audits

    def _count(self, identity: str, seller: Seller, ttft_s: float | None) -> None:
        seller.recent.add(self.monotonic_s(), ttft_s)
        seller.tally = seller.tally.after(self._clock_s(), is_good=ttft_s is not None)
        self._changed[identity] = seller

    def keep(self) -> None:
        """Write down what has changed; takes a while, and may be lost for the last seconds of a crash.

        Raises:
            SQLAlchemyError: the disk does not take it now; it is still to be kept.
        """
        changed, self._changed = self._changed, {}
        try:
            self._write(changed)
        except SQLAlchemyError:
            for identity, seller in changed.items():
                # One by one: the event loop may be counting meanwhile.
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
