"""Under every fault, with webhooks shuffled, repeated and late, the ledger agrees with what Stripe did."""

import random
from collections import Counter

import pytest

from tests.accounting.payments.marketplace import Marketplace
from tests.accounting.payments.storm import EARNED_NANO, SELLERS, Storm, expected, found
from tests.fakes.stripe import paying


def _storm(marketplace: Marketplace, deliveries: int, seed: int) -> Counter[str]:
    marketplace.funds(10_000)
    for seller_id in SELLERS:
        marketplace.seller(seller_id, EARNED_NANO)
    storm = Storm(marketplace, random.Random(seed))
    storm.rage(deliveries)
    _end_refunds(marketplace)
    assert expected(marketplace) == found(marketplace)
    marketplace.check()
    assert marketplace.payments.worker.count("failed") == 0
    return Counter(made["object"] for made in marketplace.stripe.state.objects.values())


def _end_refunds(marketplace: Marketplace) -> None:
    """Until its bank answers, a refund is booked at Stripe and only reserved in the ledger."""
    for refund in list(marketplace.stripe.state.all("refund")):
        if refund["status"] == "pending":
            paying.end_refund(marketplace.stripe.state, refund["id"], succeeds=True)
    marketplace.settle()


THINGS = ("charge", "refund", "dispute", "transfer", "transfer_reversal", "payout")


@pytest.mark.timeout(600)
def test_webhooks_in_a_storm(marketplace: Marketplace) -> None:
    happened = _storm(marketplace, deliveries=50, seed=3)
    assert [thing for thing in THINGS if not happened[thing]] == [], "not tested"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_webhooks_in_a_storm_for_long(marketplace: Marketplace) -> None:
    happened = _storm(marketplace, deliveries=1_000, seed=6)
    assert [thing for thing in THINGS if not happened[thing]] == [], "not tested"
