"""Collects the inputs of a decision: the current offers, their health, and the request's needs."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from gateway.identity.caller import Caller
from gateway.lanes.base import Call, Lane, Offer
from gateway.routing.breaker import Breaker
from gateway.routing.decision import Candidate, Decision, Rejection, rank, ready_first, weigh
from gateway.routing.dispatch import Dispatch
from gateway.routing.health import LaneHealth
from gateway.routing.memory import Accuracy, Memory, OutputLengths, Report
from gateway.routing.need import Need, need_of
from gateway.routing.policy import Ceiling, Objection, objection_to
from gateway.routing.prediction import Known
from gateway.routing.prefixes import Chain, PrefixIndex, chain_of
from gateway.routing.shortlist import Shortlist, Shortlists
from gateway.settings import LaneName, PolicySettings, RoutingSettings
from gateway.settings.routing import chain_of_fallbacks

# From more backends than this, a random sample is ranked: the best of a few is nearly as good, and simultaneous
# requests do not all choose the same backend.
SAMPLE = 16
# Bytes per estimated token, as in all estimates without a tokenizer.
BYTES_PER_TOKEN = 4
# With this number of candidates for the requested model, its fallbacks are never reached.
_ENOUGH = 3


class Router:
    """Decides for calls and for simulations with the same function, and learns from reported attempts."""

    def __init__(
        self,
        lanes: Mapping[LaneName, Lane],
        health: LaneHealth,
        weights: RoutingSettings,
        policy: PolicySettings | None = None,
        *,
        report: Report | None = None,
        seed: int | None = None,
    ) -> None:
        """`report` receives each prediction with the measured value; `seed` makes random choices repeatable."""
        self._health = health
        self._weights = weights
        spend_nano_max = policy.spend_nano_max if policy else None
        self._ceiling_of_all = None if spend_nano_max is None else Ceiling(spend_nano_max, "policy.spend_nano_max")
        self._fallbacks = {model: chain_of_fallbacks(model, weights.fallbacks) for model in weights.fallbacks}
        self._prefixes = PrefixIndex()
        self._lengths = OutputLengths()
        self._accuracy = Accuracy(report)
        self._memory = Memory(self._accuracy, self._lengths, self._prefixes)
        self._shortlists = Shortlists(lanes.values(), health, self._ceiling)
        self._lots = random.Random(seed)  # noqa: S311 - samples, not secrets
        self._paused: frozenset[str] = frozenset()

    def pause(self, lanes: Collection[str]) -> None:
        """From the next request on, these lanes get no requests; all other lanes are resumed."""
        self._paused = frozenset(lanes)

    def decide(self, caller: Caller, call: Call) -> Decision:
        """Return the decision to act on. Raises RequestInvalid for invalid preferences."""
        decision = self.explain(caller, call)
        if decision.candidates and (known := decision.candidates[0].known):
            # A backend on trial gets no second request until the trial has begun.
            breakers = known.health.breakers
            if not breakers.are_clear:
                breakers.claim(known.offer.model_there, self._health.clock())
        return decision

    def explain(self, caller: Caller, call: Call) -> Decision:
        """The decision for a request at this moment, without side effects."""
        model = call.request.model
        limit = call.request.tokens_limit
        need = need_of(call, caller, self._lengths.expected(caller.key_id, model, limit))
        chain: list[int] = []
        candidates, rejections = self._weigh(need, caller, call, chain)
        if model in self._fallbacks and need.preferences.allows_fallbacks:
            for other in self._fallbacks[model]:
                if len(candidates) >= _ENOUGH:
                    break
                expected = self._lengths.expected(caller.key_id, other, limit)
                instead = structs.replace(need, model=other, expected_tokens=expected)
                more, unfit = self._weigh(instead, caller, call, chain)
                candidates += more
                rejections += unfit
            ready_first(candidates)
        if not candidates:
            candidates = self._last_resort(need, rejections)
        return Decision(tuple(candidates), tuple(rejections), "", chain, caller.key_id, model)

    def _last_resort(self, need: Need, rejections: list[Rejection]) -> list[Candidate]:
        """If an estimate excludes all offers, let the cluster decide: it counts exactly and reports the error."""
        exact = [r for r in rejections if r.objection.check == "context" and r.offer.lane == "cluster"]
        rejections[:] = [r for r in rejections if r not in exact]
        now_s = self._health.now_s()
        known = self._admitted(self._shortlists.known([r.offer for r in exact]), rejections, now_s)
        weighed = [weigh(need, one, 0, now_s, self._weights, None) for one in known]
        return rank(need, [one for one in weighed if isinstance(one, Candidate)])

    def _weigh(
        self, need: Need, caller: Caller, call: Call, chain: list[int]
    ) -> tuple[list[Candidate], list[Rejection]]:
        """Return candidates and rejections of one model. Fills `chain` if there is a choice that needs it."""
        now_s, shortlist = self._health.clock(), None
        if need.model == call.request.model and not self._paused:
            shortlist = self._shortlists.kept(need, caller, now_s)
        if shortlist is None:
            shortlist = self._shortlist(need, caller, call, now_s)
        rejections = [*shortlist.rejections]
        known = shortlist.passed
        if len(known) != 1 or not known[0].health.breakers.are_clear:
            known = self._admitted(known, rejections, now_s)
        has_choice = len(known) > 1
        if has_choice:
            if not chain:
                chain += chain_of(call.request, call.request.model, call.tenant, need.privacy)
            if len(known) > SAMPLE:
                known = self._sample(known, chain)
        candidates: list[Candidate] = []
        for one in known:
            matched = self._prefixes.matched_bytes(one.offer.label, chain) // BYTES_PER_TOKEN if chain else 0
            weighed = weigh(need, one, matched, now_s, self._weights, shortlist.ceiling)
            if isinstance(weighed, Candidate):
                candidates.append(weighed)
            else:
                rejections.append(weighed)
        return (rank(need, candidates) if has_choice else candidates), rejections

    def _shortlist(self, need: Need, caller: Caller, call: Call, now_s: float) -> Shortlist:
        """Ask the lanes for their offers, and return those that may and can answer."""
        offers, versions = self._shortlists.offers(need.model)
        if need.model != call.request.model:
            # The request's bytes name another model, which the lane must replace.
            offers = [replace(offer, served_as=offer.served_as or offer.model) for offer in offers]
            versions = None
        if not self._paused:
            return self._shortlists.of(need, caller, offers, versions, now_s)
        rejections = [
            Rejection(offer, objection_to(offer, need, caller) or Objection("paused", (offer.lane,)))
            for offer in offers
            if offer.lane in self._paused
        ]
        offers = [offer for offer in offers if offer.lane not in self._paused]
        found = self._shortlists.of(need, caller, offers, None, now_s)
        return structs.replace(found, rejections=[*found.rejections, *rejections])

    def _admitted(self, passed: Sequence[Known], rejections: list[Rejection], now_s: float) -> list[Known]:
        """Return the offers whose breaker allows requests; the others become rejections."""
        admitted = []
        for known in passed:
            breakers = known.health.breakers
            breaker = None if breakers.are_clear else breakers.barring(known.offer.model_there, now_s)
            if breaker is None:
                admitted.append(known)
            else:
                rejections.append(Rejection(known.offer, Objection("breaker", (_pause(breaker, now_s),))))
        return admitted

    def _sample(self, known: Sequence[Known], chain: Chain) -> list[Known]:
        """Return a random sample, and the offers that have seen much of the prompt."""
        warm = [one for one in known if self._prefixes.holds_half(one.offer.label, chain)][: SAMPLE // 2]
        labels = {one.offer.label for one in warm}
        cold = [one for one in known if one.offer.label not in labels]
        return warm + self._lots.sample(cold, SAMPLE - len(warm))

    def _ceiling(self, caller: Caller, model: str) -> Ceiling | None:
        """Return the lowest limit of the settings and the caller's spend quotas for one request."""
        ceiling = self._ceiling_of_all
        for quota in caller.quotas:
            concerns = quota.measure == "spend" and quota.model in (None, model)
            if concerns and (ceiling is None or quota.amount < ceiling.amount_nano):
                ceiling = Ceiling(quota.amount, f"the budget of {quota.scope}")
        return ceiling

    def began(self, label: str, decision: Decision | None = None, offer: Offer | None = None) -> Dispatch:
        """Record that a request goes to this backend: it counts there, and its prompt will be in the cache there.

        `offer` selects the candidate if a backend has several. The caller reports the end to the dispatch.
        """
        clock, found = self._health.clock, None
        if decision and (candidates := decision.candidates):
            found = candidates[0] if candidates[0].offer is offer else _candidate(candidates, label, offer)
        if decision is None or found is None or (known := found.known) is None:
            model = offer.model_there if offer else ""
            dispatch = Dispatch(label, model, clock, self._health.of(label), self._memory)
        else:
            if decision.chain:
                self._prefixes.insert(label, decision.chain)
            self._remember(found, known, decision.candidates)
            model, key_id = found.offer.model_there, decision.key_id
            dispatch = Dispatch(label, model, clock, known.health, self._memory, found, key_id)
        dispatch.begin()
        return dispatch

    def _remember(self, chosen: Candidate, known: Known, candidates: Sequence[Candidate]) -> None:
        """Update the records of the chosen candidate and of the others."""
        rates = known.rates
        rates.passed_over = 0
        if chosen.predicted.load_s and rates.loading_since_s is None:
            rates.loading_since_s = self._health.now_s()
        if len(candidates) == 1:
            return
        for candidate in candidates:
            if candidate is chosen or candidate.known is None:
                continue
            rates = candidate.known.rates
            rates.was_passed_over()
            if candidate.predicted.load_s:
                # Like buying skis once renting has cost as much: load the model when the spared waits add up to
                # the loading time.
                loaded_s = candidate.predicted_s - candidate.predicted.load_s
                rates.regret_s += max(0.0, chosen.predicted_s - loaded_s)

    def accuracy(self) -> dict[str, dict[str, float]]:
        """Return the median error of predictions by backend: in seconds, and as a share of the median time."""
        return self._accuracy.summary()


def _candidate(candidates: Sequence[Candidate], label: str, offer: Offer | None) -> Candidate | None:
    for candidate in candidates:
        if candidate.offer is offer or (offer is None and candidate.offer.label == label):
            return candidate
    return None


def _pause(breaker: Breaker, now_s: float) -> str:
    if now_s < breaker.asked_until_s:
        return f"asked for a pause that ends in {breaker.asked_until_s - now_s:.0f} s"
    return f"failed {breaker.failures_in_row} times in a row and is paused"
