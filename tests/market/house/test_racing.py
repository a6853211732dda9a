"""Many at once: nobody is paid twice, and no credits are put aside twice."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from sqlalchemy.exc import OperationalError

from accounting.errors import InsufficientCredit, LedgerBusy
from accounting.rules.held import Payer
from accounting.rules.parts import Share
from market.house.allocations import Allocations
from tests.market.house.conftest import USD, House
from tests.market.house.dealing import Dealing

T = TypeVar("T")


def test_who_settles_the_same_at_once_books_it_once(house: House) -> None:
    allocation, terms = house.allocate()
    dealing = Dealing(terms)
    pieces = [dealing.serve(lane) for lane in range(12)]

    def settle(n: int) -> int:
        return _until_not_busy(lambda: house.settle(allocation, pieces[n % len(pieces)]).settled_nano)

    with ThreadPoolExecutor(8) as threads:
        settled = list(threads.map(settle, range(24)))
    assert max(settled) == house.settle(allocation, []).settled_nano == dealing.due_nano
    assert house.posted("user:ann:paid") == 100 * USD - dealing.due_nano
    assert house.is_sound()


def test_credits_are_put_aside_once(house: House) -> None:
    def allocate(n: int) -> bool:
        try:
            house.allocate(limit_nano=60 * USD, allocation_id=f"at-once-{n}")
        except InsufficientCredit:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        granted = list(threads.map(lambda n: _until_not_busy(lambda: allocate(n)), range(16)))
    assert (sum(granted), house.held()) == (1, 60 * USD)
    assert house.is_sound()


def test_an_allocation_that_two_processes_make_at_once_is_kept(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them finds too little, for the other has just put it aside."""
    credits_of = Allocations._credits
    made: list[str] = []

    def slowly(desk: Allocations, payer: Payer, seller_user: str) -> Sequence[Share]:
        monkeypatch.setattr(Allocations, "_credits", credits_of)
        made.append(house.allocate(limit_nano=60 * USD, allocation_id="a-x")[0].digest)
        return credits_of(desk, payer, seller_user)

    monkeypatch.setattr(Allocations, "_credits", slowly)
    allocation, terms = house.allocate(limit_nano=60 * USD, allocation_id="a-x")
    assert (made, house.held()) == ([allocation.digest], 60 * USD)
    dealing = Dealing(terms)
    assert house.settle(allocation, dealing.serve()).settled_nano == dealing.due_nano
    with pytest.raises(InsufficientCredit):
        house.allocate(limit_nano=60 * USD, allocation_id="a-y")
    house.books.credit("ann", 60 * USD)
    house.allocate(limit_nano=60 * USD, allocation_id="a-y")
    assert house.is_sound()


def _until_not_busy(ask: Callable[[], T]) -> T:
    for _ in range(20):
        try:
            return ask()
        except (
            LedgerBusy,
            OperationalError,
        ):  # SQLite has no line for writers: on a busy machine one may wait too long.
            continue
    raise AssertionError("busy for good")
