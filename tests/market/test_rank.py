"""No seller gains rank by many names, by buying from itself, or by serving auditors better."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.protocol.audits.kolmogorov import SAMPLES_MIN, tells_audits_apart
from market.protocol.audits.reputation import BUYER_OUTCOMES_MAX, Dealing, reputation
from market.protocol.audits.verdicts import after_anomaly, decide, new_case
from market.protocol.matching.candidate import Candidate, Need
from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.choice import EXPLORED, choose
from market.protocol.matching.track import NOTHING_KNOWN, Tally, Track
from market.protocol.matching.weights import weigh

NEED = Need()
HONEST = [f"honest{n}" for n in range(4)]
WELL = Track(Tally(200, 2), Tally(20, 0))


def offer(
    name: str, owner: str, track: Track = WELL, *, cost_nano: int = 1_000, **rest: bool | float
) -> Candidate:
    return Candidate(name, owner, cost_nano, track, LearnedCap.of(8), **rest)  # type: ignore[arg-type]


def got(offers: list[Candidate], name: str, need: Need = NEED) -> float:
    """The share of those whose owner's name begins so."""
    return sum(each.share for each in weigh(offers, need) if each.candidate.owner.startswith(name))


@pytest.mark.parametrize("cost_nano", [10, 1_000, 10_000])
def test_fifty_names_of_one_owner_get_what_one_would(cost_nano: int) -> None:
    honest = [offer(name, name) for name in HONEST]
    many = [offer(f"many{n}", "many", cost_nano=cost_nano) for n in range(50)]
    # Nor do they make the others look dear.
    assert got([*honest, *many], "many") == pytest.approx(got([*honest, many[0]], "many"))
    busy = [replace(each, in_flight=8 * (n > 0)) for n, each in enumerate(many)]
    assert got([*honest, *busy], "many") <= got([*honest, many[0]], "many") + 1e-9


def test_fifty_strangers_of_one_owner_get_what_exploring_gives_to_all() -> None:
    honest = [offer(name, name) for name in HONEST]
    # No buyer knows that these are one seller, but no buyer knows any of them, either.
    strangers = [offer(f"s{n}", f"s{n}", Track(), cost_nano=1, is_probation=True) for n in range(50)]
    assert got([*honest, *strangers], "s") == 0
    chance = Random(6)
    choices = [choose([*honest, *strangers], NEED, chance.random) for _ in range(400)]
    assert sum(each is not None and each.candidate.owner[0] == "s" for each in choices) <= 400 * 3 * EXPLORED
    # None of them sees anything that matters.
    assert choose(strangers, Need(is_sensitive=True), chance.random) is None


def shopping(buyers: int, sellers: list[str], each_nano: int, name: str = "buyer") -> list[Dealing]:
    """Every buyer has bought of every seller, and was always content."""
    return [Dealing(f"{name}{n}", seller, each_nano, good=40) for n in range(buyers) for seller in sellers]


def test_a_ring_that_buys_from_itself_gains_no_rank() -> None:
    honest = shopping(20, HONEST, 10_000)
    # Each accomplice trades with the ring alone, and the ring with itself.
    ring = [*shopping(10, ["ring"], 10_000, "accomplice"), Dealing("ring", "ring", 10**9, good=10_000)]
    of_ring = reputation("ring", [*honest, *ring], 0.0)
    assert of_ring == NOTHING_KNOWN
    assert reputation("honest0", [*honest, *ring], 0.0).lower_bound > 0.9
    offers = [offer(name, name, Track(reputation(name, honest, 0.0), Tally(20, 0))) for name in HONEST]
    newcomer, wash = offer("x", "x", Track(Tally(), Tally(20, 0))), offer("x", "x", Track(of_ring, Tally(20, 0)))
    assert got([*offers, wash], "x") == got([*offers, newcomer], "x") < 0.01


@given(st.integers(1, 40), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**4))
def test_pretended_trade_counts_as_much_as_real_trade_was_paid_for(
    accomplices: int, here_nano: int, elsewhere_nano: int, good: int
) -> None:
    dealings = [
        dealing
        for n in range(accomplices)
        for dealing in (
            Dealing(f"a{n}", "ring", here_nano, good=good),
            Dealing(f"a{n}", "stranger", elsewhere_nano, good=1),
        )
    ]
    outcomes = reputation("ring", dealings, 0.0).good
    bought = elsewhere_nano / (here_nano + elsewhere_nano)
    assert outcomes <= accomplices * BUYER_OUTCOMES_MAX * bought + 1e-6
    # Failures weigh as much as successes do.
    failures = reputation(
        "ring", [Dealing(d.buyer_owner, d.seller_owner, d.paid_nano, 0, d.good) for d in dealings], 0
    )
    assert failures.bad == pytest.approx(outcomes)


def test_haste_for_auditors_gains_nothing_and_is_seen() -> None:
    chance = Random(9)

    def seconds(mean: float) -> float:
        return chance.lognormvariate(0, 0.4) * mean

    audits: list[float] = []
    traffic: list[float] = []
    for request in range(1, 600):
        (audits if request % 12 == 0 else traffic).append(seconds(0.3 if request % 12 == 0 else 2.0))
        if tells_audits_apart(audits, traffic):
            break
    assert len(audits) == SAMPLES_MIN
    assert decide(after_anomaly(new_case(is_probation=False))).action == "watch"
    # It is ranked by what the buyer's own requests saw.
    need = Need(ttft_target_s=0.5, second_nano=1_000)
    slow = offer("slow", "slow", ttft_p90_s=sorted(traffic)[int(0.9 * len(traffic))])
    shares = weigh([slow, offer("honest", "honest", ttft_p90_s=0.4)], need)
    assert shares[0].candidate.owner == "honest"
    assert shares[0].share > 0.8
