"""Predicts a request's time in seconds and price in nano-USD at an offer, and the one cost to rank it by. Pure.

    first token = wait + (prompt - cached) x seconds per prompt token + overhead + loading where needed
    time        = first token + expected answer x seconds per token at this load
    cost        = dollars + late_weight x max(0, first token x (1 + its usual error) - target)
                + failure_weight x risk + speed_weight x time

`risk` is the probability of a failure above the usual one of every backend. `speed_weight` is small: it orders own
machines, and no money is spent to save a token's delay unless the owner sets the value of a second.
"""

from msgspec import Struct

from accounting.money import MAX_TOKENS
from gateway.lanes.base import Offer
from gateway.routing.health import Health
from gateway.routing.need import Need
from gateway.routing.policy import price_nano
from gateway.routing.rates import STARTING_S, Load, Rates
from gateway.settings import RoutingSettings

# Failures up to this share are noise and do not distinguish backends.
_USUAL_RISK = 0.02
_LEAST_WEIGHT = 0.001


class Known(Struct, frozen=True):
    """An offer with its backend's record and the model's rates there; both keep changing."""

    offer: Offer
    health: Health
    rates: Rates


class Prediction(Struct, frozen=True, gc=False):
    """The formula's terms. `nano` is the caller's charge, `cost_nano` the compared cost.

    `is_untried`: the model has not answered at this backend yet.
    """

    first_token_s: float
    wait_s: float
    load_s: float
    token_s: float
    tokens: int
    nano: int
    failure_share: float
    cost_nano: int
    load: Load
    is_untried: bool = False

    @property
    def time_s(self) -> float:
        return self.first_token_s + self.tokens * self.token_s


def predict(need: Need, known: Known, matched_tokens: int, now_s: float, weights: RoutingSettings) -> Prediction:
    """Predict a request.

    Never fails, and never gives less for a busier backend. `matched_tokens` of the prompt were sent there before.
    """
    offer, rates = known.offer, known.rates
    load = load_on(need, known, matched_tokens, now_s)
    first_token_s, wait_s, token_s = rates.predict(load)
    load_s, begin_s = 0.0, first_token_s
    if not load.is_resident:
        load_s = loading_s(known, now_s)
        first_token_s += load_s
        # Each wait that loading would have spared counts in favour of loading the model.
        begin_s = first_token_s - min(load_s, rates.regret_s)
    nano = price_nano(offer, need) if offer.price else 0
    tokens, failure_share = need.expected_tokens, known.health.failure_share(now_s)
    cost = weights.speed_nano_per_s * (begin_s + tokens * token_s)
    if offer.weight != 1.0:
        cost /= max(_LEAST_WEIGHT, offer.weight)
    late_s = begin_s * (1 + rates.spread) - weights.target_s
    if late_s > 0:
        cost += weights.time_nano_per_s * late_s
    if failure_share > _USUAL_RISK:
        cost += weights.failure_nano * (failure_share - _USUAL_RISK)
    cost_nano = nano + int(cost)
    return Prediction(
        first_token_s,
        wait_s,
        load_s,
        token_s,
        tokens,
        nano,
        failure_share,
        cost_nano,
        load,
        not rates.has_answered,
    )


def load_on(need: Need, known: Known, matched_tokens: int, now_s: float) -> Load:
    """Return the load ahead of the request: this gateway's own count, or the backend's if that is higher."""
    offer, health = known.offer, known.health
    beside = health.in_flight
    if offer.running is not None or offer.queued is not None:
        beside = max(beside, (offer.running or 0) + (offer.queued or 0))
    beside += health.waiting
    prompt_tokens = need.prompt_tokens
    if prompt_tokens > MAX_TOKENS:
        prompt_tokens = MAX_TOKENS
    return Load(
        prompt_tokens,
        matched_tokens if matched_tokens < prompt_tokens else prompt_tokens,
        health.pending_tokens,
        beside,
        offer.slots or health.spoke_most or None,
        offer.is_resident and offer.state == "ready",
        need.is_stream,
        health.stalled_s(beside, offer.slots, now_s),
    )


def loading_s(known: Known, now_s: float) -> float:
    """Return the seconds until the model is loaded; less if loading has begun."""
    offer = known.offer
    whole_s = offer.load_s or (STARTING_S if offer.state == "starting" else 0.0)
    since_s = known.rates.loading_since_s
    return whole_s if since_s is None else max(0.0, whole_s - (now_s - since_s))
