"""What the tests of routing choose from, and who asks."""

from dataclasses import replace
from typing import Any

from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.dialects.openai import ChatRequest, Message
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Offer
from gateway.routing.health import LaneHealth
from gateway.routing.router import Router
from gateway.settings import LaneName, PolicySettings, RoutingSettings

PRICE = PricedModel("cloud", "m", "test", Price(3_000_000_000, 3_000_000_000, 15_000_000_000), provider="acme")
CLUSTER = Offer("cluster", "cluster", "m", slots=4)
POOL = Offer("pool", "desk", "m", slots=4)
CLOUD = Offer("cloud", "big-m", "m", price=PRICE)
MARKET = Offer("market", "0123456789ab", "m", price=replace(PRICE, lane="market", provider="market"))


def caller(*lanes: LaneName, **more: Any) -> Caller:
    return Caller("id", "mr-abc", "owner", "home", frozenset(lanes or ("cluster", "pool", "cloud")), **more)


EVERYBODY = caller()


def call(text: str = "Why does the wheel turn?", model: str = "m", tenant: str = "", **fields: Any) -> Call:
    request = ChatRequest(
        model=model, messages=[Message(role="user", content=text)], **({"stream": True} | fields)
    )
    return Call("req_1", "chat", request, b"{}", tenant)


class FixedLane:
    """A lane whose offers are set by hand, by model."""

    def __init__(self, name: LaneName, *offers: Offer) -> None:
        self.name = name
        self.given = list(offers)

    def models(self) -> list[str]:
        return sorted({offer.model for offer in self.given})

    def offers(self, model: str) -> list[Offer]:
        return [offer for offer in self.given if offer.model == model]

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        raise NotImplementedError


class Bench:
    """A router over fixed offers, with a clock that is set by hand."""

    def __init__(self, *offers: Offer, policy: PolicySettings | None = None, **weights: Any) -> None:
        self.now_s = 1000.0
        self.health = LaneHealth(lambda: self.now_s)
        names: tuple[LaneName, ...] = ("cluster", "pool", "cloud", "market")
        self.lanes = {name: FixedLane(name, *(o for o in offers if o.lane == name)) for name in names}
        self.router = Router(self.lanes, self.health, RoutingSettings(**weights), policy, seed=1)

    def labels(self, who: Caller = EVERYBODY, asked: Call | None = None) -> list[str]:
        decision = self.router.explain(who, asked or call())
        return [candidate.offer.label for candidate in decision.candidates]

    def rejected(self, who: Caller = EVERYBODY, asked: Call | None = None) -> dict[str, str]:
        """By label, the check that ruled it out."""
        decision = self.router.explain(who, asked or call())
        return {rejection.offer.label: rejection.objection.check for rejection in decision.rejections}

    def serve(self, label: str, first_s: float = 0.1, token_s: float = 0.03, tokens: int = 100) -> None:
        """One request there, from beginning to end."""
        dispatch = self.router.began(label, self.router.explain(EVERYBODY, call()))
        self.now_s += first_s
        dispatch.first_byte()
        self.now_s += token_s * (tokens - 1)
        dispatch.succeeded(tokens)

    def fail(self, label: str, times: int = 1) -> None:
        for _ in range(times):
            self.router.began(label, self.router.explain(EVERYBODY, call())).failed()
