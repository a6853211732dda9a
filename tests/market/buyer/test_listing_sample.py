"""What is shown of very many listings: identities cost nothing, so what a flood of them gets is bounded."""

from typing import Any

from market.buyer.listing_sample import MODEL_MAX, NEWCOMERS_MAX, OFFERS_MAX, ListingSample
from market.buyer.purchasable_listing import PurchasableListing


class _Named:
    """As much of a record and a listing as is looked at."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def offering(
    seller: str, name: str = "mill", model: str = "mill-1b", *, is_new: bool = True
) -> PurchasableListing:
    record: Any = _Named(issuer=seller, name=name)
    listing: Any = _Named(id=model, quantization="bf16")
    return PurchasableListing(record, listing, "", is_new)


def test_a_flood_of_listings_does_not_hide_the_others() -> None:
    """Known sellers are always shown; of each new seller, one listing per model."""
    flood = [offering(f"sybil {n // 32}", f"mill {n}") for n in range(32 * 40)]
    invented = [offering(f"sybil {n}", model=f"model {n}") for n in range(1000)]
    known = [offering(f"known {n}", is_new=False) for n in range(20)]
    shown = ListingSample().of(
        [*flood, *invented, *known, offering("partner", is_new=False)], lambda seller: seller == "partner"
    )
    assert shown[0].seller == "partner"
    assert {each.seller for each in shown[1:21]} == {each.seller for each in known}
    assert sum(each.is_probation for each in shown[1:]) == NEWCOMERS_MAX
    assert sum(each.listing.id == "mill-1b" for each in shown) <= MODEL_MAX + 1
    assert len({(each.seller, each.listing.id) for each in shown}) == len(shown) <= OFFERS_MAX


def test_a_newcomer_is_shown_beside_a_few_who_list_much() -> None:
    flood = [offering(f"sybil {n // 32}", f"mill {n}") for n in range(640)]
    display = ListingSample()
    shown = display.of([*flood, offering("ann")], lambda _: False)
    assert "ann" in {each.seller for each in shown}
    assert display.of([offering("ann"), *reversed(flood)], lambda _: False)[0].seller == shown[0].seller
