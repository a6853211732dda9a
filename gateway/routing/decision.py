"""Which lane answers a request: a pure function of offers, health and weights to a decision with its reasons.

Hard filters first; then every candidate gets a prediction in seconds and nano-dollars and one cost:

    begin = queue wait + time to first token
    cost  = price + time_weight * max(0, begin - target) + failure_weight * P(failure)

Own machines cost no dollars, so they come first until waiting for them costs more than the cloud charges. That
they speak slowly is no reason to pay somebody else; among equals the one that is predicted to finish first leads.
"""

from dataclasses import dataclass
from typing import Any

from accounting.money import charge, format_usd
from gateway.identity.caller import Caller
from gateway.lanes.base import Offer
from gateway.lanes.features import Feature
from gateway.openai import Kind
from gateway.routing.health import Health
from gateway.routing.policy import Rule, forbids
from gateway.settings import LaneName, RoutingSettings

# What a lane is taken for until it has been seen at work, in seconds.
_FIRST_TOKEN_S: dict[LaneName, float] = {"cluster": 0.5, "pool": 0.5, "cloud": 1.0}
_TOKEN_S: dict[LaneName, float] = {"cluster": 0.1, "pool": 0.03, "cloud": 0.015}
_REQUEST_S = 10.0
_STARTING_S = 10.0
# Limits are set generously and seldom reached: what most answers come to.
_OUTPUT_TOKENS = 256

# Where costs are equal: a whole copy answers faster than the same layers split, and both belong to us.
_ORDER: dict[LaneName, int] = {"pool": 0, "cluster": 1, "cloud": 2}


@dataclass(frozen=True, slots=True)
class Need:
    """What a request asks of a lane. Token counts are estimates made before any tokenizer has seen it."""

    model: str
    features: frozenset[Feature]
    prompt_tokens: int
    output_tokens: int | None
    lane: LaneName | None = None
    kind: Kind = "chat"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An offer that could answer, with what it is predicted to take."""

    offer: Offer
    predicted_s: float
    predicted_nano: int
    cost_nano: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """An offer that cannot answer; `rule` when it may not."""

    offer: Offer
    reason: str
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Candidates, best first, and what was ruled out. `reason` says in a sentence why the first leads."""

    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    reason: str

    def as_data(self) -> dict[str, Any]:
        """For the database and for people who ask why."""
        return {
            "reason": self.reason,
            "candidates": [
                {
                    "lane": candidate.offer.label,
                    "predicted_s": round(candidate.predicted_s, 3),
                    "predicted_usd": format_usd(candidate.predicted_nano),
                    "reason": candidate.reason,
                }
                for candidate in self.candidates
            ],
            "rejected": [{"lane": r.offer.label, "reason": r.reason} for r in self.rejections],
        }


@dataclass(frozen=True, slots=True)
class Facts:
    """One offer with its backend's record and whether its breaker lets requests pass."""

    offer: Offer
    health: Health
    is_open: bool


def decide(need: Need, caller: Caller, facts: list[Facts], weights: RoutingSettings) -> Decision:
    """Rank what may answer. Never raises: an empty ranking has its reasons in the rejections."""
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for fact in facts:
        if rejection := _reject(need, caller, fact):
            rejections.append(rejection)
        else:
            candidates.append(_predict(need, fact, weights))
    candidates.sort(key=lambda c: (c.cost_nano, _ORDER[c.offer.lane], c.predicted_s))
    return Decision(tuple(candidates), tuple(rejections), _explain(candidates, rejections))


def _reject(need: Need, caller: Caller, fact: Facts) -> Rejection | None:
    offer = fact.offer
    if need.lane and offer.lane != need.lane:
        return Rejection(offer, f"the request asks for the {need.lane} lane")
    if rule := forbids(caller, offer):
        return Rejection(offer, rule.sentence, rule)
    if need.kind not in offer.kinds:
        return Rejection(offer, "does not embed" if need.kind == "embedding" else "is an embedding model")
    if missing := need.features - offer.features:
        return Rejection(offer, f"does not support {', '.join(sorted(missing))}")
    if offer.state == "down":
        return Rejection(offer, offer.note or "is down")
    if not fact.is_open:
        return Rejection(offer, f"failed {fact.health.failures_in_row} times in a row and has a pause")
    return None


def _predict(need: Need, fact: Facts, weights: RoutingSettings) -> Candidate:
    offer, health = fact.offer, fact.health
    output_tokens = _OUTPUT_TOKENS if need.output_tokens is None else min(need.output_tokens, _OUTPUT_TOKENS)
    wait_s = _queue_wait_s(fact) + (_STARTING_S if offer.state == "starting" else 0.0)
    first_token_s = health.first_token_s if health.first_token_s is not None else _FIRST_TOKEN_S[offer.lane]
    token_s = health.token_s if health.token_s is not None else _TOKEN_S[offer.lane]
    time_s = wait_s + first_token_s + output_tokens * token_s
    nano = 0
    if offer.price:
        nano = charge(offer.price.price_for(need.prompt_tokens), need.prompt_tokens, 0, output_tokens)
    late_s = max(0.0, wait_s + first_token_s - weights.target_s)
    cost_nano = nano + int(weights.time_nano_per_s * late_s) + int(weights.failure_nano * health.failure_share)
    reason = f"about {time_s:.1f} s and ${format_usd(nano)}"
    if wait_s >= 1:
        reason += f", {wait_s:.0f} s of it waiting"
    return Candidate(offer, time_s, nano, cost_nano, reason)


def _queue_wait_s(fact: Facts) -> float:
    """Time until a slot is free, from how long requests take there."""
    offer, health = fact.offer, fact.health
    if not offer.slots or health.in_flight < offer.slots:
        return 0.0
    request_s = health.request_s if health.request_s is not None else _REQUEST_S
    return (health.in_flight - offer.slots + 1) * request_s / offer.slots


def _explain(candidates: list[Candidate], rejections: list[Rejection]) -> str:
    if not candidates:
        return "; ".join(f"{r.offer.label}: {r.reason}" for r in rejections) or "no lane has this model"
    first = candidates[0]
    text = f"{first.offer.label}: {first.reason}"
    local_rejections = [r for r in rejections if first.offer.lane == "cloud" and r.offer.lane != "cloud"]
    if local_rejections:
        return text + "; " + "; ".join(f"{r.offer.label} {r.reason}" for r in local_rejections)
    if len(candidates) > 1:
        return text + f"; next {candidates[1].offer.label}: {candidates[1].reason}"
    return text + "; the only one allowed and able"
