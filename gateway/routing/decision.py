"""Ranks the lanes for a request, with reasons: a pure function of offers, health and weights.

`sift` selects the offers that may and can answer, then `weigh` expresses what each would take as one cost. Own
machines cost no dollars, so they lead until waiting for them costs more than the cloud charges. Their slow output
is no reason to pay a provider. Among equals the offer with the earliest predicted end leads.

Decisions keep numbers; text is made of them only on request.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from msgspec import Struct

from gateway.identity.caller import Caller
from gateway.lanes.base import Offer
from gateway.routing import reasons
from gateway.routing.health import USUAL_FAILURE_SHARE
from gateway.routing.need import NO_PREFERENCES, Need
from gateway.routing.policy import Ceiling, Objection, Rule, objection_to, place_in
from gateway.routing.prediction import Known, Prediction, predict
from gateway.routing.prefixes import Chain
from gateway.settings import LaneName, RoutingSettings

# A predicted wait of this length counts as a queue, if a backend does not report its number of slots.
_LONG_WAIT_S = 1.0
# If costs are equal: a whole copy answers faster than the same layers split over machines.
_ORDER: dict[LaneName, int] = {"pool": 0, "cluster": 1, "cloud": 2, "market": 3}


class Candidate(Struct, frozen=True):
    """An offer that could answer, with its prediction and the prediction's inputs.

    A Struct, because thousands are created each second.
    """

    offer: Offer
    predicted: Prediction
    known: Known | None = None

    @property
    def predicted_s(self) -> float:
        return self.predicted.time_s

    @property
    def reason(self) -> str:
        return reasons.of_candidate(self.predicted)


class Rejection(Struct, frozen=True):
    """An offer that cannot answer; `rule` is set if it may not."""

    offer: Offer
    objection: Objection

    @property
    def reason(self) -> str:
        """Return the reason in words for callers."""
        return self.objection.told

    @property
    def rule(self) -> Rule | None:
        return self.objection.rule


class Decision(Struct, frozen=True):
    """Candidates, best first, and rejections. `chain` has the hashes of the prompt's beginning.

    Candidates of other models than the requested one are the owner's fallbacks.
    """

    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    said: str = ""
    chain: Chain = ()
    key_id: str = ""
    model: str = ""

    @property
    def reason(self) -> str:
        """Return a sentence for callers: why the first leads, or why there is none."""
        if self.said:
            return self.said
        if len(self.candidates) == 1 and not self.rejections:
            only = self.candidates[0]
            if only.offer.model == self.model:
                return reasons.of_only_one(only.offer, only.predicted)
        first = [(c.offer, c.predicted) for c in self.candidates[:2]]
        text = reasons.of_decision(first, [(r.offer, r.reason) for r in self.rejections])
        if first and first[0][0].model != self.model:
            return f"{first[0][0].model} in place of {self.model}: {text}"
        return text

    def as_data(self) -> dict[str, Any]:
        """Return plain data for the database and for explanations."""
        return {
            "reason": self.reason,
            "candidates": [reasons.candidate_data(c.offer, c.predicted) for c in self.candidates],
            "rejected": [reasons.rejection_data(r.offer, r.objection) for r in self.rejections],
        }


def sift(need: Need, caller: Caller, offers: Sequence[Offer]) -> tuple[list[Offer], list[Rejection]]:
    """Select the offers that may and can answer, by all rules that do not depend on a backend's current state."""
    passed: list[Offer] = []
    rejections: list[Rejection] = []
    for offer in offers:
        if objection := objection_to(offer, need, caller):
            rejections.append(Rejection(offer, objection))
        else:
            passed.append(offer)
    return passed, rejections


def weigh(
    need: Need, known: Known, matched_tokens: int, now_s: float, weights: RoutingSettings, ceiling: Ceiling | None
) -> Candidate | Rejection:
    """Turn a passed offer into a candidate, or a rejection if it would cost more than the ceiling."""
    predicted = predict(need, known, matched_tokens, now_s, weights)
    if ceiling and predicted.nano > ceiling.amount_nano:
        return Rejection(known.offer, ceiling.objection(predicted.nano))
    return Candidate(known.offer, predicted, known)


def rank(need: Need, candidates: list[Candidate]) -> list[Candidate]:
    """Return the best first, as many as the request's preferences allow."""
    if len(candidates) > 1:
        _sort(candidates, need)
        ready_first(candidates)
        if need.preferences is NO_PREFERENCES:
            _explore(candidates)
    if not need.preferences.allows_fallbacks and not need.preferences.order:
        return candidates[:1]
    return candidates


def ready_first(candidates: list[Candidate]) -> None:
    """Move a cluster whose pipeline is not ready to the end: it is asked if no other offer answers."""
    candidates.sort(key=lambda each: each.offer.lane == "cluster" and each.offer.state == "starting")


def _sort(candidates: list[Candidate], need: Need) -> None:
    wished = need.preferences
    if wished is NO_PREFERENCES:
        _sort_by_cost(candidates)
        return
    if wished.sort == "price":
        candidates.sort(key=lambda c: (c.predicted.nano, *_by_cost(c)))
    elif wished.sort == "latency":
        candidates.sort(key=lambda c: (c.predicted.first_token_s, *_by_cost(c)))
    elif wished.sort == "throughput":
        candidates.sort(key=lambda c: (c.predicted.token_s, *_by_cost(c)))
    else:
        _sort_by_cost(candidates)
    if wished.order:
        candidates.sort(key=lambda c: place_in(wished.order, c.offer))


def _sort_by_cost(candidates: list[Candidate]) -> None:
    """Sort by cost, but keep a lane's random order: an offer counts as costly as those drawn before it."""
    drawn = sorted((each for each in candidates if each.offer.place), key=lambda each: each.offer.place)
    if len(drawn) < 2:
        candidates.sort(key=_by_cost)
        return
    costs = accumulate(map(_by_cost, drawn), max)
    by_label = {each.offer.label: cost for each, cost in zip(drawn, costs, strict=True)}
    candidates.sort(key=lambda each: (by_label.get(each.offer.label) or _by_cost(each), each.offer.place))


def _explore(candidates: list[Candidate]) -> None:
    """Put an idle, untried own backend first if the best one has a queue: it may be faster."""
    if not _has_queue(candidates[0]):
        return
    weight = candidates[0].offer.weight
    for at in range(1, len(candidates)):
        # Owners give less weight to backends that should be used rarely.
        if candidates[at].offer.weight >= weight and _may_be_explored(candidates[at]):
            candidates.insert(0, candidates.pop(at))
            return


def _has_queue(candidate: Candidate) -> bool:
    """Return whether all its slots are taken; without known slots, whether the predicted wait is long."""
    slots, predicted = candidate.offer.slots, candidate.predicted
    return predicted.load.beside >= slots if slots else predicted.wait_s >= _LONG_WAIT_S


def _may_be_explored(candidate: Candidate) -> bool:
    """Return whether to try it: one request at a time, only if the model is loaded.

    After a failure only costs decide.
    """
    predicted, offer = candidate.predicted, candidate.offer
    if offer.price is not None or not predicted.is_untried or not predicted.load.is_resident:
        return False
    return not predicted.load.beside and predicted.failure_share <= USUAL_FAILURE_SHARE


def _by_cost(candidate: Candidate) -> tuple[int, bool, float, int]:
    predicted = candidate.predicted
    return predicted.cost_nano, predicted.is_untried, predicted.time_s, _ORDER[candidate.offer.lane]
