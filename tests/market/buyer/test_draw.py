"""Who is asked: by matching's weights, with no reward for bait, and in that order whatever else competes."""

import random
from collections import Counter
from typing import Any

from msgspec import structs

from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.lanes.base import Offer
from gateway.lanes.market.draw import drawn, excluded
from gateway.routing.decision import Candidate, rank
from gateway.routing.need import Need
from gateway.routing.prediction import Prediction
from gateway.routing.rates import Load
from market.protocol.offers import OnOffer

ROW = OnOffer(
    listing="l",
    seller="s",
    name="mill",
    model="m",
    weights="w",
    tokenizer="t",
    quantization="bf16",
    region="DE",
    keeps_data=False,
    clearance="public",
    context_tokens=8192,
    output_tokens=2048,
    prompt_nano=20_000_000,
    cached_nano=5_000_000,
    completion_nano=80_000_000,
    has_tools=True,
    has_schemas=False,
    has_logprobs=False,
    slots=4,
    cap=4.0,
    in_flight=0,
    good=100.0,
    bad=2.0,
    at_s=0.0,
    is_probation=False,
    is_broken=False,
    tier="declared",
)


def row(name: str, **changed: Any) -> OnOffer:
    return structs.replace(ROW, listing=f"listing of {name}", seller=name, **changed)


def firsts(rows: list[OnOffer], times: int = 1200) -> Counter[str]:
    chance = random.Random(7).random
    return Counter(drawn(rows, chance)[0].seller for _ in range(times))


def test_a_cheap_listing_that_refuses_gains_nothing_by_it() -> None:
    """Threat 29: bait, and then 429 for nine of ten; what it pays for is its record."""
    bait = row("bait", prompt_nano=200_000, completion_nano=800_000, good=10.0, bad=90.0, cap=1.0)
    honest = [row(f"honest {n}") for n in range(3)]
    shares = firsts([bait, *honest])
    assert shares["bait"] < min(shares[each.seller] for each in honest)
    full = structs.replace(bait, in_flight=1)
    assert firsts([full, *honest])["bait"] == 0
    assert excluded([full, *honest]) == {bait.listing: "has no free slot"}


def test_many_listings_of_one_seller_are_one() -> None:
    flood = [structs.replace(row("flood"), listing=f"flood {n}", name=str(n)) for n in range(50)]
    shares = firsts([*flood, row("ann")], 400)
    assert abs(shares["ann"] - shares["flood"]) < 100


def test_new_sellers_get_some_requests_and_all_if_there_is_no_other_seller() -> None:
    new = row("new", good=0.0, bad=0.0, is_probation=True)
    shares = firsts([new, row("ann"), row("bob")])
    assert 0 < shares["new"] < 30
    assert firsts([new], 5) == {"new": 5}
    order = drawn([new, row("ann"), row("bob")], random.Random(3).random)
    assert [each.seller for each in order][-1] == "new"


def candidate(name: str, place: int, nano: int, lane: Any = "market") -> Candidate:
    price = PricedModel(lane, "m", "", Price(1, 1, 1), lane)
    load = Load(10, 0, 0, 0, None, True, True)
    predicted = Prediction(
        load=load,
        first_token_s=1.0,
        wait_s=0.0,
        load_s=0.0,
        token_s=0.1,
        tokens=10,
        nano=nano,
        failure_share=0.0,
        cost_nano=nano,
    )
    return Candidate(Offer(lane, name, "m", price=price, place=place), predicted)


def test_the_drawn_listing_competes_with_its_own_price() -> None:
    cloud = candidate("fast", 0, 50, "cloud")
    order = rank(
        Need("m", frozenset(), 10, None),
        [candidate("third", 3, 1), cloud, candidate("first", 1, 40), candidate("second", 2, 60)],
    )
    assert [each.offer.backend for each in order] == ["first", "fast", "second", "third"]
