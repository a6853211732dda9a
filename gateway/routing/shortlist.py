"""The offers that may and can answer, computed once for similar requests.

Rules, features and lanes are the same for nearly every request of a key. Only the prompt's length and the state of
the backends are checked for each request. Lanes are asked for their offers again only if their versions changed, or
if they tell none.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from gateway.identity.caller import Caller
from gateway.lanes.base import Lane, Offer, VersionedLane
from gateway.routing.decision import Rejection, sift
from gateway.routing.health import LaneHealth
from gateway.routing.need import NO_PREFERENCES, Need
from gateway.routing.policy import Ceiling, context_needed
from gateway.routing.prediction import Known
from gateway.routing.priors import prior_of

# Health records of backends and models that were long unused are dropped; no shortlist keeps them longer.
_LASTS_S = 1.0
_REMEMBERED = 4096
_NO_BOUND = 2**62


Versions: TypeAlias = tuple[tuple[VersionedLane, object], ...]


class Shortlist(Struct, frozen=True):
    """The offers that passed every rule, and the rejections. `context_tokens` is the passed offers' minimum.

    `versions` are those of the lanes' offers; None if a lane that tells no version has some of the offers.
    """

    caller: Caller
    offers: Sequence[Offer]
    passed: Sequence[Known]
    rejections: Sequence[Rejection]
    ceiling: Ceiling | None
    context_tokens: int
    until_s: float
    versions: Versions | None


class Shortlists:
    """Bounded. A list is rebuilt after each change of an offer or a key's rights, and within a second anyway."""

    def __init__(
        self, lanes: Iterable[Lane], health: LaneHealth, ceiling_of: Callable[[Caller, str], Ceiling | None]
    ) -> None:
        self._lanes = tuple(lanes)
        self._versioned = tuple(lane for lane in self._lanes if isinstance(lane, VersionedLane))
        self._live = tuple(lane for lane in self._lanes if not isinstance(lane, VersionedLane))
        self._health = health
        self._ceiling_of = ceiling_of
        self._by_need: dict[tuple[object, ...], Shortlist] = {}

    def kept(self, need: Need, caller: Caller, now_s: float) -> Shortlist | None:
        """Return the list of an equal request before, if it still holds; None if the lanes must be asked."""
        found = self._by_need.get((caller.key_id, need.model, need.features, need.kind, need.privacy, need.lane))
        if found is None or found.caller is not caller or found.versions is None or now_s >= found.until_s:
            return None
        if need.preferences is not NO_PREFERENCES or context_needed(need) > found.context_tokens:
            return None
        for lane, version in found.versions:
            if lane.version != version:
                return None
        for live in self._live:
            if live.offers(need.model):
                return None
        return found

    def offers(self, model: str) -> tuple[list[Offer], Versions | None]:
        """Ask every lane for its offers; return them with their versions."""
        versions: Versions | None = tuple((lane, lane.version) for lane in self._versioned)
        offers: list[Offer] = []
        for lane in self._lanes:
            found = lane.offers(model)
            offers += found
            if found and lane in self._live:
                versions = None
        return offers, versions

    def of(
        self, need: Need, caller: Caller, offers: Sequence[Offer], versions: Versions | None, now_s: float
    ) -> Shortlist:
        """Return the result of `sift` for the current offers."""
        if not offers or need.preferences is not NO_PREFERENCES:
            return self._make(need, caller, offers, versions, now_s)
        name = (caller.key_id, need.model, need.features, need.kind, need.privacy, need.lane)
        found = self._by_need.get(name)
        if found is None or found.caller is not caller or now_s >= found.until_s or found.offers != offers:
            if len(self._by_need) >= _REMEMBERED:
                self._by_need.clear()
            any_length = structs.replace(need, prompt_tokens=0, output_tokens=0)
            found = self._by_need[name] = self._make(any_length, caller, offers, versions, now_s)
        elif found.versions != versions:
            found = self._by_need[name] = structs.replace(found, versions=versions)
        if context_needed(need) > found.context_tokens:
            return self._make(need, caller, offers, versions, now_s)
        return found

    def known(self, offers: Sequence[Offer]) -> list[Known]:
        """Return offers with their records."""
        records = [(offer, self._health.of(offer.label)) for offer in offers]
        found = [Known(offer, record, record.rates_of(offer)) for offer, record in records]
        untried = [known for known in found if known.offer.price is None and not known.rates.has_answered]
        if untried:
            replicas = [speed for known in found if known.offer.price is None and (speed := known.rates.speed)]
            for known in untried:
                siblings = known.health.siblings_of(known.offer)
                known.rates.expect(prior_of(known.offer, siblings, replicas))
        return found

    def _make(
        self, need: Need, caller: Caller, offers: Sequence[Offer], versions: Versions | None, now_s: float
    ) -> Shortlist:
        passed, rejections = sift(need, caller, offers)
        contexts = [offer.context_tokens for offer in passed if offer.context_tokens is not None]
        return Shortlist(
            caller,
            offers,
            self.known(passed),
            rejections,
            self._ceiling_of(caller, need.model),
            min(contexts, default=_NO_BOUND),
            now_s + _LASTS_S,
            versions,
        )
