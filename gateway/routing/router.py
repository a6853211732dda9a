"""Puts the facts of this moment before the decision: what is on offer, how it has been doing, what is asked."""

from collections.abc import Mapping

from gateway.identity.caller import Caller
from gateway.lanes.base import Call, Lane
from gateway.lanes.tokens import estimate_prompt
from gateway.routing.decision import Decision, Facts, Need, decide
from gateway.routing.health import LaneHealth
from gateway.settings import LaneName, RoutingSettings


class Router:
    """Decides for calls; the same function answers those who only ask."""

    def __init__(self, lanes: Mapping[LaneName, Lane], health: LaneHealth, weights: RoutingSettings) -> None:
        self._lanes = lanes
        self._health = health
        self._weights = weights

    def decide(self, caller: Caller, call: Call) -> Decision:
        """The routing decision for a call, without acting on it. Never raises."""
        request, health = call.request, self._health
        need = Need(
            model=request.model,
            features=frozenset(call.features),
            prompt_tokens=estimate_prompt(request),
            output_tokens=request.tokens_limit,
            lane=request.millrace.lane if request.millrace else None,
            kind=call.kind,
        )
        now_s = health.now_s()
        offers = [offer for lane in self._lanes.values() for offer in lane.offers(request.model)]
        facts = [Facts(offer, record := health.of(offer.label), record.is_open(now_s)) for offer in offers]
        return decide(need, caller, facts, self._weights)
