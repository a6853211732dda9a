"""Matching: better is never worse, and neither bait, nor fine manners for auditors, nor many names gain rank."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from market.protocol.matching.breaker import Recent, Signal, is_tripped
from market.protocol.matching.candidate import PROBATION_COST_MAX_NANO, Candidate
from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.choice import EXPLORED, choose
from market.protocol.matching.track import HALF_LIFE_S, Tally, Track
from market.protocol.matching.weights import weigh
from tests.examples import examples

counts = st.integers(0, 500).map(float)
tallies = st.builds(Tally, counts, counts)
tracks = st.builds(Track, tallies, tallies)


@st.composite
def candidates(draw: st.DrawFn, size: int = 6) -> list[Candidate]:
    return [
        Candidate(
            listing=f"l{n}",
            owner=draw(st.sampled_from(["o1", "o2", "o3", f"only{n}"])),
            cost_nano=draw(st.integers(0, 10**7)),
            track=draw(tracks),
            cap=LearnedCap.of(draw(st.integers(1, 8))),
            in_flight=draw(st.integers(0, 8)),
            is_probation=draw(st.booleans()),
            is_broken=draw(st.sampled_from([False, False, True])),
        )
        for n in range(draw(st.integers(0, size)))
    ]


def seller(name: str, cost_nano: int = 1_000, good: float = 200, bad: float = 2, **rest: object) -> Candidate:
    track = Track(Tally(good, bad), Tally(20, 0))
    given = {"listing": name, "owner": name, "cost_nano": cost_nano, "track": track, "cap": LearnedCap.of(8)}
    return Candidate(**{**given, **rest})  # type: ignore[arg-type]


def share_of(several: list[Candidate], *owners: str) -> float:
    return sum(each.share for each in weigh(several) if each.candidate.owner in owners)


def chance_of(seed: int) -> Callable[[], float]:
    return random.Random(seed).random


@given(candidates())
def test_shares_add_up_and_are_for_those_who_may(several: list[Candidate]) -> None:
    weighed = weigh(several)
    assert len(weighed) == len(several)
    if any(each.share for each in weighed):
        assert sum(each.share for each in weighed) == pytest.approx(1)
    for each in weighed:
        assert each.share >= 0
        if each.excluded or each.candidate.is_probation:
            assert each.share == 0


@given(candidates(), st.randoms())
def test_the_order_in_which_they_are_named_decides_nothing(
    several: list[Candidate], chance: random.Random
) -> None:
    mixed = list(several)
    chance.shuffle(mixed)
    shares = [{each.candidate.listing: pytest.approx(each.share) for each in weigh(mixed)}]
    assert {each.candidate.listing: each.share for each in weigh(several)} == shares[0]


@given(tracks, st.integers(0, 10**7), st.integers(0, 7), st.data())
def test_who_is_better_in_everything_gets_no_less(
    track: Track, cost_nano: int, in_flight: int, data: st.DataObject
) -> None:
    def add(tally: Tally) -> Tally:
        return replace(tally, good=tally.good + data.draw(counts), bad=tally.bad * data.draw(st.floats(0, 1)))

    worse = seller("worse", cost_nano, track=track, in_flight=in_flight)
    better = replace(
        worse,
        listing="better",
        owner="better",
        cost_nano=data.draw(st.integers(0, cost_nano)),
        track=Track(add(track.served), add(track.audits)),
        in_flight=data.draw(st.integers(0, in_flight)),
    )
    several = [worse, better, seller("third")]
    shares = {each.candidate.listing: each.share for each in weigh(several)}
    assert shares["better"] >= shares["worse"] * (1 - 1e-9)


@given(candidates(), st.integers(1, 10**6))
def test_a_higher_price_gains_nothing(several: list[Candidate], more_nano: int) -> None:
    if several:
        several = [replace(each, owner=each.listing) for each in several]
        dearer = [replace(several[0], cost_nano=several[0].cost_nano + more_nano), *several[1:]]
        after, before = (share_of(each, "l0") for each in (dearer, several))
        # Its own price is part of the usual price, which moves no other price below the bait line.
        assert after <= before + 1e-9


@given(candidates(), st.integers(1, 40))
def test_more_names_of_one_owner_gain_nothing(several: list[Candidate], names: int) -> None:
    several = [*several, seller("honest")]
    own = seller("own", owner="many")
    many = [replace(own, listing=f"own{n}") for n in range(names)]
    assert share_of([*several, *many], "many") == pytest.approx(share_of([*several, own], "many"))


@given(st.integers(1, 60), st.integers(0, 10**6))
@settings(max_examples=examples(15, 40))
def test_all_newcomers_together_get_what_exploring_gives(names: int, seed: int) -> None:
    strangers = [seller(f"new{n}", 1, 0, 0, is_probation=True) for n in range(names)]
    chance = random.Random(seed)
    explored = chance.random() < EXPLORED
    chosen = choose([seller("honest"), *strangers], chance_of(seed))
    assert chosen is not None
    assert explored or chosen.candidate.owner == "honest"


def test_newcomers_see_nothing_dear() -> None:
    stranger = seller("new", PROBATION_COST_MAX_NANO, is_probation=True)
    assert choose([stranger], chance_of(1)) is not None
    assert choose([replace(stranger, cost_nano=PROBATION_COST_MAX_NANO + 1)], chance_of(1)) is None


@given(candidates(), st.integers(0, 10**6))
def test_only_permitted_sellers_are_chosen(several: list[Candidate], seed: int) -> None:
    chosen = choose(several, chance_of(seed))
    able = [each for each in several if each.exclusion is None]
    assert (chosen is None) == (not able)
    if chosen:
        assert chosen.candidate in able
        assert choose(several, chance_of(seed)) == chosen


def test_a_third_of_the_price_is_nine_times_the_traffic() -> None:
    several = [seller("a", 1_000), seller("c", 3_000)]
    assert share_of(several, "a") == pytest.approx(9 * share_of(several, "c"))


def test_of_two_the_less_busy() -> None:
    busy, free = seller("busy", in_flight=4), seller("free")
    drawn = Counter(c.candidate.owner for seed in range(2_000) if (c := choose([busy, free], chance_of(seed))))
    # A third of the weight, and both draws must hit it.
    assert drawn["busy"] / 2_000 == pytest.approx(1 / 9, abs=0.04)


@given(tallies, st.booleans())
def test_what_is_known_of_a_seller(tally: Tally, is_good: bool) -> None:
    assert 0 <= tally.lower_bound <= tally.rate < 1
    after = tally.after(tally.at_s, is_good=is_good)
    assert (after.rate > tally.rate) == is_good
    old = tally.after(tally.at_s + HALF_LIFE_S, is_good=True)
    assert old.good + old.bad == pytest.approx((tally.good + tally.bad) / 2 + 1)


@given(st.integers(1, 64), st.lists(st.tuples(st.booleans(), st.integers(1, 80)), max_size=60))
def test_a_cap_stays_between_one_and_what_was_said(slots: int, outcomes: list[tuple[bool, int]]) -> None:
    cap = LearnedCap.of(slots)
    for is_refused, in_flight in outcomes:
        before = cap.cap
        cap = cap.after_refusal(in_flight) if is_refused else cap.after_answer(in_flight)
        assert 1 <= cap.cap <= slots
        assert cap.cap <= before if is_refused else cap.cap >= before
        assert 0 <= cap.headroom(in_flight) < 1


def test_a_cap_settles_where_the_refusals_begin() -> None:
    cap = LearnedCap.of(64)
    for _ in range(400):
        in_flight = max(1, int(cap.cap))
        cap = cap.after_refusal(in_flight) if in_flight > 10 else cap.after_answer(in_flight)
    assert 6 <= cap.cap <= 12


def test_a_breaker_compares_with_peers() -> None:
    well, ill = Signal(20, 0.05, 0.5), Signal(20, 0.6, 0.5)
    assert is_tripped(ill, [well, well, ill])
    assert not is_tripped(ill, [ill, ill, well])
    assert not is_tripped(well, [])
    assert is_tripped(Signal(20, 0.95), [])
    assert not is_tripped(Signal(4, 1.0), [well])
    assert is_tripped(Signal(20, 0.05, 9.0), [well, well])
    assert not is_tripped(Signal(20, 0.05, 1.9), [well, well])


def test_a_breaker_forgets_after_half_a_minute() -> None:
    recent = Recent()
    for second in range(10):
        recent.add(float(second), None if second < 5 else 1.5)
    assert recent.signal(9.0) == Signal(10, 0.5, 1.5)
    assert recent.signal(34.5) == Signal(5, 0.0, 1.5)
    assert recent.signal(60.0) == Signal()


@dataclass
class Machine:
    """A seller in the simulation: what it says, and what it does."""

    candidate: Candidate
    answers: float = 0.98
    passes: float = 1.0
    known: Track = field(default_factory=Track)


def simulated(machines: list[Machine], requests: int = 3_000) -> Counter[str]:
    """Who got the last half of the requests, each outcome learned from; one request in fifty is audited."""
    chance = random.Random(21)
    got: Counter[str] = Counter()
    for number in range(requests):
        now_s = 10.0 * number
        offers = [replace(each.candidate, track=each.known) for each in machines]
        chosen = choose(offers, chance.random)
        assert chosen is not None
        machine = next(each for each in machines if each.candidate.listing == chosen.candidate.listing)
        served = machine.known.served.after(now_s, is_good=chance.random() < machine.answers)
        audits = machine.known.audits
        if chance.random() < 0.02:
            audits = audits.after(now_s, is_good=chance.random() < machine.passes)
        machine.known = Track(served, audits)
        if number * 2 >= requests:
            got[machine.candidate.owner] += 1
    return got


def test_bait_and_cheating_lose_the_traffic() -> None:
    machines = [
        *(Machine(seller(f"honest{n}", 1_000 + 50 * n), known=Track(Tally(50, 1), Tally(3, 0))) for n in range(4)),
        Machine(seller("bait", 100), answers=0.05, known=Track(Tally(50, 1), Tally(3, 0))),
        Machine(seller("cheat", 700), passes=0.1, known=Track(Tally(50, 1), Tally(3, 0))),
        *(Machine(seller(f"sybil{n}", 10, is_probation=True), answers=0.2) for n in range(30)),
    ]
    got = simulated(machines)
    total = sum(got.values())
    assert got["bait"] < 0.05 * total
    assert got["cheat"] < 0.25 * total
    assert sum(got[f"sybil{n}"] for n in range(30)) < 0.03 * total
    assert sum(got[f"honest{n}"] for n in range(4)) > 0.7 * total
