"""Compare the routing formula with other policies on simulated fleets: time to first token, goodput, cost."""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from accounting.money import NANO_PER_USD, charge
from bench.routing_policies import CacheAware, Formula, LeastBusy, Maker, PowerOfTwo, RoundRobin, price_of
from bench.routing_traces import Trace
from bench.simulator import Clock, Machine, Query, Ride, Server
from gateway.settings import RoutingSettings

TARGET_S = 2.0
LASTS_S = 600.0
SEEDS = (1, 2, 3)

GPU = Machine("gpu", 6000, 0.012, 0.0004, 32, 400_000)
BOX = Machine("box", 3000, 0.020, 0.001, 16, 100_000)
LAPTOP = Machine("laptop", 400, 0.060, 0.010, 4, 16_000, delay_s=0.005)
CLOUD = Machine("cloud", 20_000, 0.012, 0.0, 1000, 0, delay_s=0.5, usd_per_mtok=(0.5, 1.5))


def _boxes(count: int) -> tuple[Machine, ...]:
    return tuple(replace(BOX, name=f"box{at}") for at in range(count))


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines, and how many conversations begin on them each second: about 60 % of their capacity."""

    name: str
    machines: tuple[Machine, ...]
    conversations_per_s: float


FLEETS = (
    Fleet("gpu + laptop + cloud", (GPU, LAPTOP, CLOUD), 1.5),
    Fleet("gpu + box + 2 laptops", (GPU, BOX, LAPTOP, replace(LAPTOP, name="laptop2")), 1.6),
    Fleet("4 equal", _boxes(4), 1.5),
    Fleet(
        "4 equal, one 4x slower from 60 s",
        (*_boxes(3), replace(BOX, name="hot", slower_from_s=60.0, slower_times=4.0)),
        1.1,
    ),
    Fleet("3 equal, one cold (25 s to load)", (*_boxes(2), replace(BOX, name="cold", load_s=25.0)), 1.1),
)

POLICIES: dict[str, Maker] = {
    "round robin": RoundRobin,
    "least busy": LeastBusy,
    "power of two": PowerOfTwo,
    "cache aware": CacheAware,
    "formula": partial(Formula, weights=RoutingSettings()),
    "formula, slots known": partial(Formula, weights=RoutingSettings(), says_slots=True),
}


# An own machine with more requests than it can serve, and a provider for the rest.
_CHEAP, _DEAR = (0.15, 0.6), (3.0, 15.0)
BURSTS = (
    Fleet("laptop + cheap cloud", (LAPTOP, replace(CLOUD, usd_per_mtok=_CHEAP)), 0.12),
    Fleet("laptop + dear cloud", (LAPTOP, replace(CLOUD, usd_per_mtok=_DEAR)), 0.12),
    Fleet("box + cheap cloud", (BOX, replace(CLOUD, usd_per_mtok=_CHEAP)), 0.9),
    Fleet("box + dear cloud", (BOX, replace(CLOUD, usd_per_mtok=_DEAR)), 0.9),
)
# Pairs of `target_s` in seconds and `time_nano_per_s` in nano-USD.
DEFAULTS = tuple((target_s, worth) for worth in (1_000_000, 10_000_000) for target_s in (1.0, 2.0, 5.0, 30.0))


@dataclass(frozen=True, slots=True)
class Figures:
    first_mean_s: float
    first_p95_s: float
    first_worst_s: float
    time_mean_s: float
    goodput_per_s: float
    paid_share: float
    usd: float


def simulate(machines: Sequence[Machine], queries: Sequence[Query], make: Maker) -> list[Ride]:
    """Run every query through the server that the policy chooses for it."""
    clock = Clock()
    servers = [Server(machine, clock) for machine in machines]
    policy = make(servers, clock)
    rides: list[Ride] = []

    def send(query: Query) -> None:
        server = servers[policy.choose(query)]
        ride = Ride(query, server, lambda: policy.first(ride), lambda: policy.ended(ride), clock.now_s)
        rides.append(ride)
        server.take(ride)

    for query in queries:
        clock.at(query.at_s, partial(send, query))
    clock.run()
    return rides


def figures(rides: Sequence[Ride], lasts_s: float) -> Figures:
    firsts = sorted(ride.first_s - ride.began_s for ride in rides)
    nano = 0
    for ride in rides:
        if priced := price_of(ride.server):
            nano += charge(priced.price, ride.query.prompt_tokens, 0, ride.query.answer_tokens)
    return Figures(
        statistics.fmean(firsts),
        firsts[int(0.95 * (len(firsts) - 1))],
        firsts[-1],
        statistics.fmean(ride.ended_s - ride.began_s for ride in rides),
        sum(first <= TARGET_S for first in firsts) / lasts_s,
        sum(price_of(ride.server) is not None for ride in rides) / len(rides),
        nano / NANO_PER_USD,
    )


def measure(fleet: Fleet, policy: Maker, *, is_bursty: bool, lasts_s: float, seeds: Sequence[int]) -> Figures:
    """Return the mean over the seeds."""
    trace = Trace(fleet.conversations_per_s, lasts_s, is_bursty)
    runs = [figures(simulate(fleet.machines, trace.queries(seed), policy), lasts_s) for seed in seeds]
    return Figures(*(statistics.fmean(getattr(run, name) for run in runs) for name in Figures.__slots__))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench routing", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--seconds", type=float, default=LASTS_S, help="simulated time of each run")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--defaults", action="store_true", help="compare candidates for the settings' defaults")
    given = parser.parse_args(arguments)
    if given.defaults:
        compare_defaults(given.seconds, given.seeds)
        return
    print("| fleet | arrivals | policy | TTFT mean s | TTFT p95 s | time mean s | in time /s | USD |")
    print("|---|---|---|---|---|---|---|---|")
    for fleet in FLEETS:
        for is_bursty in (False, True):
            for name in given.policies:
                found = measure(
                    fleet, POLICIES[name], is_bursty=is_bursty, lasts_s=given.seconds, seeds=given.seeds
                )
                arrivals = "rushes" if is_bursty else "Poisson"
                print(
                    f"| {fleet.name} | {arrivals} | {name} | {found.first_mean_s:.2f} "
                    f"| {found.first_p95_s:.2f} | {found.time_mean_s:.1f} | {found.goodput_per_s:.2f} "
                    f"| {found.usd:.3f} |",
                    flush=True,
                )


def compare_defaults(lasts_s: float, seeds: Sequence[int]) -> None:
    """Compare targets and costs of a late second, on an overloaded own machine."""
    print("| fleet | target s | USD a late second | TTFT mean s | p95 s | worst s | paid | USD |")
    print("|---|---|---|---|---|---|---|---|")
    for fleet in BURSTS:
        for target_s, worth in DEFAULTS:
            weights = RoutingSettings(target_s=target_s, time_nano_per_s=worth)
            make = partial(Formula, weights=weights, says_slots=True)
            found = measure(fleet, make, is_bursty=True, lasts_s=lasts_s, seeds=seeds)
            print(
                f"| {fleet.name} | {target_s:g} | {worth / NANO_PER_USD:g} | {found.first_mean_s:.2f} "
                f"| {found.first_p95_s:.2f} | {found.first_worst_s:.1f} | {found.paid_share:.0%} "
                f"| {found.usd:.3f} |",
                flush=True,
            )
