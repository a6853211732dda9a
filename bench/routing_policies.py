"""Define ways to choose a server, which see only what a gateway sees: what it sent where, and when answers came.

The policies of others follow their published descriptions and defaults.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from accounting.metering.prices import PricedModel
from accounting.money import NANO_PER_USD, Price
from bench.simulator import Clock, Query, Ride, Server
from gateway.dialects.openai import ChatRequest, Message
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Offer
from gateway.routing.dispatch import Dispatch
from gateway.routing.health import LaneHealth
from gateway.routing.prefixes import BLOCK_BYTES, PrefixIndex
from gateway.routing.router import Router
from gateway.settings import LaneName, RoutingSettings

MODEL = "m"
_CALLER = Caller("id", "mr-bench", "owner", "home", frozenset(("cluster", "pool", "cloud")))


class Policy(Protocol):
    """A policy in one run. It is notified of what a gateway would notice."""

    def choose(self, query: Query) -> int:
        """Return the number of the chosen server. The query is sent there at once."""

    def first(self, ride: Ride) -> None: ...

    def ended(self, ride: Ride) -> None: ...


class Counting:
    """What the simple policies know: running requests by server."""

    def __init__(self, servers: Sequence[Server], clock: Clock) -> None:
        self.servers = servers
        self.clock = clock
        self.in_flight = [0] * len(servers)
        self.chance = random.Random(7)

    def choose(self, query: Query) -> int:
        number = self.pick(query)
        self.in_flight[number] += 1
        return number

    def pick(self, query: Query) -> int:
        raise NotImplementedError

    def first(self, ride: Ride) -> None:
        pass

    def ended(self, ride: Ride) -> None:
        self.in_flight[self.servers.index(ride.server)] -= 1


class RoundRobin(Counting):
    _next = 0

    def pick(self, query: Query) -> int:  # noqa: ARG002
        self._next += 1
        return self._next % len(self.servers)


class LeastBusy(Counting):
    """Choose the server with the fewest running requests; break ties at random."""

    def pick(self, query: Query) -> int:  # noqa: ARG002
        least = min(self.in_flight)
        return self.chance.choice([at for at, count in enumerate(self.in_flight) if count == least])


class PowerOfTwo(Counting):
    """Choose the less busy of two random servers."""

    def pick(self, query: Query) -> int:  # noqa: ARG002
        if len(self.servers) < 2:
            return 0
        return min(self.chance.sample(range(len(self.servers)), 2), key=self.in_flight.__getitem__)


class CacheAware(Counting):
    """SGLang's policy: the longest matched prefix while loads are even, else the least busy (0.3, 64, 1.5 by
    default).
    """

    _match, _absolute, _relative = 0.3, 64, 1.5

    def __init__(self, servers: Sequence[Server], clock: Clock) -> None:
        super().__init__(servers, clock)
        self._index = PrefixIndex(blocks_max=2**18)

    def pick(self, query: Query) -> int:
        chain = _chain(query)
        number = self._pick(chain)
        self._index.insert(str(number), chain)
        return number

    def _pick(self, chain: list[int]) -> int:
        most, least = max(self.in_flight), min(self.in_flight)
        if not (most - least > self._absolute and most > self._relative * least):
            matches = [self._index.matched_bytes(str(at), chain) for at in range(len(self.servers))]
            best = max(matches)
            if best / BLOCK_BYTES > self._match * len(chain):
                return matches.index(best)
        return self.in_flight.index(least)


def _chain(query: Query) -> list[int]:
    at, chain = 0, []
    for block in query.blocks:
        at = hash((at, block))
        chain.append(at)
    return chain


@dataclass
class _SimulatedLane:
    """A lane that offers servers as the gateway's lanes do."""

    name: LaneName
    servers: Sequence[Server]
    says_slots: bool

    def models(self) -> list[str]:
        return [MODEL]

    def offers(self, model: str) -> list[Offer]:
        return [self._offer(server, model) for server in self.servers]

    def _offer(self, server: Server, model: str) -> Offer:
        machine = server.machine
        return Offer(
            self.name,
            machine.name,
            model,
            slots=machine.slots if self.says_slots and self.name == "pool" else None,
            price=price_of(server),
            is_resident=server.is_loaded,
            load_s=machine.load_s,
        )

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        raise NotImplementedError


class Formula:
    """The gateway's own router.

    `says_slots` tells whether servers publish how many requests they serve at once.
    """

    def __init__(
        self, servers: Sequence[Server], clock: Clock, *, weights: RoutingSettings, says_slots: bool = False
    ) -> None:
        self._servers = {server.machine.name: at for at, server in enumerate(servers)}
        own = [server for server in servers if server.machine.usd_per_mtok is None]
        paid = [server for server in servers if server.machine.usd_per_mtok is not None]
        lanes = {
            "pool": _SimulatedLane("pool", own, says_slots),
            "cloud": _SimulatedLane("cloud", paid, says_slots),
        }
        self.router = Router(lanes, LaneHealth(lambda: clock.now_s), weights, seed=1)  # type: ignore[arg-type]
        self._dispatched: dict[Query, Dispatch] = {}

    def choose(self, query: Query) -> int:
        decision = self.router.decide(_CALLER, _call(query))
        offer = decision.candidates[0].offer
        self._dispatched[query] = self.router.began(offer.label, decision)
        return self._servers[offer.backend]

    def first(self, ride: Ride) -> None:
        self._dispatched[ride.query].first_byte()

    def ended(self, ride: Ride) -> None:
        self._dispatched.pop(ride.query).succeeded(ride.query.answer_tokens)


def _call(query: Query) -> Call:
    text = "".join(f"{block:064x}" for block in query.blocks)
    request = ChatRequest(model=MODEL, messages=[Message(role="user", content=text)], stream=True)
    return Call("bench", "chat", request, b"")


def price_of(server: Server) -> PricedModel | None:
    if server.machine.usd_per_mtok is None:
        return None
    prompt, completion = (int(usd * NANO_PER_USD) for usd in server.machine.usd_per_mtok)
    return PricedModel("cloud", MODEL, "bench", Price(prompt, prompt, completion), provider=server.machine.name)


Maker = Callable[[Sequence[Server], Clock], Policy]
