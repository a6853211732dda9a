"""Many at once: no seller is paid twice, and no credits are reserved twice."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from sqlalchemy.exc import OperationalError

from accounting.errors import InsufficientCredit, LedgerBusy
from accounting.ledger.postings import Posted, Posting
from accounting.payments.ledger import Ledger
from accounting.rules import grants
from accounting.rules.earnings import RESERVE_DAYS
from accounting.rules.held import Payer
from accounting.rules.parts import Share
from market.marketplace.allocations import Allocations
from market.marketplace.terms import DAY_NS
from tests.market.marketplace.rules.conftest import USD, Marketplace
from tests.market.marketplace.rules.dealing import Dealing

T = TypeVar("T")


def test_who_settles_the_same_at_once_books_it_once(marketplace: Marketplace) -> None:
    allocation, terms = marketplace.allocate()
    dealing = Dealing(terms)
    pieces = [dealing.serve(lane) for lane in range(12)]

    def settle(n: int) -> int:
        return _until_not_busy(lambda: marketplace.settle(allocation, pieces[n % len(pieces)]).settled_nano)

    with ThreadPoolExecutor(8) as threads:
        settled = list(threads.map(settle, range(24)))
    assert max(settled) == marketplace.settle(allocation, []).settled_nano == dealing.due_nano
    assert marketplace.posted("user:ann:paid") == 100 * USD - dealing.due_nano
    assert marketplace.is_sound()


def test_credits_are_put_aside_once(marketplace: Marketplace) -> None:
    def allocate(n: int) -> bool:
        try:
            marketplace.allocate(limit_nano=60 * USD, allocation_id=f"at-once-{n}")
        except InsufficientCredit:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        granted = list(threads.map(lambda n: _until_not_busy(lambda: allocate(n)), range(16)))
    assert (sum(granted), marketplace.held()) == (1, 60 * USD)
    assert marketplace.is_sound()


def test_an_allocation_that_two_processes_make_at_once_is_kept(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them finds too little, for the other has just put it aside."""
    credits_of = Allocations._credits
    made: list[str] = []

    def slowly(desk: Allocations, payer: Payer, seller_user_id: str) -> Sequence[Share]:
        monkeypatch.setattr(Allocations, "_credits", credits_of)
        made.append(marketplace.allocate(limit_nano=60 * USD, allocation_id="a-x")[0].digest)
        return credits_of(desk, payer, seller_user_id)

    monkeypatch.setattr(Allocations, "_credits", slowly)
    allocation, terms = marketplace.allocate(limit_nano=60 * USD, allocation_id="a-x")
    assert (made, marketplace.held()) == ([allocation.digest], 60 * USD)
    dealing = Dealing(terms)
    assert marketplace.settle(allocation, dealing.serve()).settled_nano == dealing.due_nano
    with pytest.raises(InsufficientCredit):
        marketplace.allocate(limit_nano=60 * USD, allocation_id="a-y")
    marketplace.ledger.credit("ann", 60 * USD)
    marketplace.allocate(limit_nano=60 * USD, allocation_id="a-y")
    assert marketplace.is_sound()


def test_an_allocation_that_two_processes_put_aside_otherwise_is_made_once(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool gets credits in between: the other one has drawn from it, and this one from the user's own."""
    made: list[str] = []

    def other() -> None:
        marketplace.ledger.post(grants.pool_credit("c1", "club", 20 * USD, "test"))
        made.append(marketplace.allocate(limit_nano=60 * USD, pool="club", allocation_id="a-x")[0].digest)

    _interrupt_booking(monkeypatch, "hold:a-x", other)
    allocation, _ = marketplace.allocate(limit_nano=60 * USD, pool="club", allocation_id="a-x")
    assert made == [allocation.digest]
    assert (marketplace.held(), marketplace.ledger.balance("pool:club:paid").held_nano) == (40 * USD, 20 * USD)
    assert marketplace.is_sound()


def test_who_forfeits_while_a_sale_is_settled_has_not_earned_it(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation, terms = marketplace.allocate()
    records = Dealing(terms).serve()
    _interrupt_booking(monkeypatch, "settle:", lambda: marketplace.forfeiture.forfeit("sam", "another model"))
    marketplace.settle(allocation, records)
    marketplace.sellers.suspend("sam", None)
    marketplace.wait(40 * DAY_NS)
    marketplace.look()
    assert (marketplace.earned(), marketplace.posted("user:ann:paid")) == (0, 100 * USD)
    assert marketplace.is_sound()


@pytest.mark.parametrize("at", ["available", "book"])
def test_what_two_gateways_let_mature_at_once_is_released_whole(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    allocation, terms = marketplace.allocate()
    marketplace.settle(allocation, Dealing(terms).serve())
    earned = marketplace.earned()
    marketplace.wait(9 * DAY_NS)
    marketplace.earnings.mature("sam")
    ledgers = {"available": Ledger.available, "book": Ledger.book}
    looks = 0

    def interrupted(ledger: Ledger, values: Any) -> Any:
        nonlocal looks
        monkeypatch.setattr(Ledger, at, ledgers[at])
        looks += 1
        marketplace.earnings.look()
        return ledgers[at](ledger, values)  # type: ignore[operator]

    monkeypatch.setattr(Ledger, at, interrupted)
    marketplace.earnings.look()
    assert looks == 1
    marketplace.wait((RESERVE_DAYS + 1) * DAY_NS)
    marketplace.look()
    assert (marketplace.posted("seller:sam:payable"), marketplace.posted("seller:sam:reserve")) == (earned, 0)
    assert marketplace.is_sound()


def _interrupt_booking(monkeypatch: pytest.MonkeyPatch, key: str, happen: Callable[[], object]) -> None:
    """Has something happen once, just before an event with such a key is booked."""
    book = Ledger.book

    def interrupted(ledger: Ledger, posting: Posting) -> Posted | None:
        if posting.idem_key.startswith(key):
            monkeypatch.setattr(Ledger, "book", book)
            happen()
        return book(ledger, posting)

    monkeypatch.setattr(Ledger, "book", interrupted)


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
