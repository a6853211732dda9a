"""Threat 24: what a key, a label or a request forbids holds for strangers' machines."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.dialects.openai import MaxPrice, ProviderPreferences
from gateway.lanes.base import Offer
from gateway.routing.need import need_of
from gateway.routing.policy import clearance_of, objection_to
from gateway.settings.base import Privacy
from market.settings.buyer import MarketSettings
from tests.gateway.routing.offers import call, caller

PRICE = PricedModel("market", "m", "d" * 64, Price(20_000_000, 5_000_000, 80_000_000), provider="market")
MARKET = Offer("market", "0123456789ab", "m", price=PRICE, clearance="public", region="DE", quantization="bf16")
LABELS: tuple[Privacy, ...] = ("public", "internal", "private")


def check(offer: Offer, who: Any = None, **fields: Any) -> str | None:
    asked = call(**fields)
    who = who or caller("cluster", "pool", "cloud", "market")
    objection = objection_to(offer, need_of(asked, who, 64), who)
    return objection.check if objection else None


def test_nothing_is_bought_until_the_admin_says_so() -> None:
    assert not MarketSettings().is_wanted
    assert check(MARKET, caller()) == "lanes"


@pytest.mark.parametrize(("label", "clearance"), list(product(LABELS, LABELS)))
def test_labels_are_kept_and_private_never_leaves(label: Privacy, clearance: Privacy) -> None:
    offer = replace(MARKET, clearance=clearance)
    who = caller("market", privacy=label)
    is_allowed = label == "public" or (label == "internal" and clearance == "internal")
    assert (check(offer, who) is None) == is_allowed
    assert clearance_of(offer) != "private"


@pytest.mark.parametrize(
    ("offer", "wished", "why"),
    [
        (MARKET, {"data_collection": "deny"}, None),
        (replace(MARKET, keeps_data=True), {"data_collection": "deny"}, "provider"),
        (replace(MARKET, keeps_data=True), {"zdr": True}, "provider"),
        (MARKET, {"zdr": True}, None),
        (MARKET, {"quantizations": ["int4"]}, "provider"),
        (MARKET, {"quantizations": ["bf16"]}, None),
        (MARKET, {"max_price": MaxPrice(prompt="0.01")}, "price"),
        (MARKET, {"max_price": MaxPrice(completion="0.079")}, "price"),
        (MARKET, {"max_price": MaxPrice(completion="0.08")}, None),
        (MARKET, {"ignore": ["market"]}, "provider"),
        (MARKET, {"only": ["0123456789ab"]}, None),
        (MARKET, {"only": ["acme"]}, "provider"),
    ],
)
def test_a_requests_wishes_hold_as_for_providers(offer: Offer, wished: dict[str, Any], why: str | None) -> None:
    assert check(offer, provider=ProviderPreferences(**wished)) == why


@pytest.mark.parametrize(
    ("region", "allowed", "why"),
    [("DE", {"DE"}, None), ("US", {"DE"}, "regions"), (None, {"DE"}, "regions"), (None, None, None)],
)
def test_a_key_is_kept_to_its_regions(region: str | None, allowed: set[str] | None, why: str | None) -> None:
    who = caller("market", regions=frozenset(allowed) if allowed else None)
    assert check(replace(MARKET, region=region), who) == why
