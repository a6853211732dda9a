"""Under every fault, with webhooks shuffled, repeated and late, the books come to what Stripe did."""

import random
from collections import Counter

import pytest

from tests.accounting.payments.house import Marketplace
from tests.accounting.payments.storm import EARNED_NANO, SELLERS, Storm, expected, found
from tests.fakes.stripe import paying


def _storm(house: Marketplace, deliveries: int, seed: int) -> Counter[str]:
    house.funds(10_000)
    for seller_id in SELLERS:
        house.seller(seller_id, EARNED_NANO)
    storm = Storm(house, random.Random(seed))
    storm.rage(deliveries)
    _end_refunds(house)
    assert expected(house) == found(house)
    house.check()
    assert house.payments.worker.count("failed") == 0
    return Counter(made["object"] for made in house.stripe.state.objects.values())


def _end_refunds(house: Marketplace) -> None:
    """Until its bank answers, a refund is booked at Stripe and only put aside in the books."""
    for refund in list(house.stripe.state.all("refund")):
        if refund["status"] == "pending":
            paying.end_refund(house.stripe.state, refund["id"], succeeds=True)
    house.settle()


THINGS = ("charge", "refund", "dispute", "transfer", "transfer_reversal", "payout")


@pytest.mark.timeout(600)
def test_webhooks_in_a_storm(house: Marketplace) -> None:
    happened = _storm(house, deliveries=200, seed=5)
    assert [thing for thing in THINGS if not happened[thing]] == [], "not tested"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_webhooks_in_a_storm_for_long(house: Marketplace) -> None:
    happened = _storm(house, deliveries=1_000, seed=6)
    assert [thing for thing in THINGS if not happened[thing]] == [], "not tested"
