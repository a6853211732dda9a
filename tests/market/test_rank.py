"""No seller gains rank by many names."""

from dataclasses import replace
from random import Random

import pytest

from market.protocol.matching.candidate import Candidate
from market.protocol.matching.caps import LearnedCap
from market.protocol.matching.choice import EXPLORED, choose
from market.protocol.matching.track import Tally, Track
from market.protocol.matching.weights import weigh

HONEST = [f"honest{n}" for n in range(4)]
WELL = Track(Tally(200, 2), Tally(20, 0))


def offer(
    name: str, owner: str, track: Track = WELL, *, cost_nano: int = 1_000, **rest: bool | float
) -> Candidate:
    return Candidate(name, owner, cost_nano, track, LearnedCap.of(8), **rest)  # type: ignore[arg-type]


def got(offers: list[Candidate], name: str) -> float:
    """The share of those whose owner's name begins so."""
    return sum(each.share for each in weigh(offers) if each.candidate.owner.startswith(name))


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
    choices = [choose([*honest, *strangers], chance.random) for _ in range(400)]
    assert sum(each is not None and each.candidate.owner[0] == "s" for each in choices) <= 400 * 3 * EXPLORED
