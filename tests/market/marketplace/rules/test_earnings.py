"""Earnings become their sellers' with time: later while those are new, not of disputed money, never by fraud."""

import pytest

from accounting.errors import LedgerBusy
from accounting.rules.earnings import RESERVE_DAYS
from accounting.rules.usage_refunds import refund
from accounting.spending.charges import find_charge, find_refund_parties
from accounting.spending.earned import earned_after
from market.errors import MarketplaceRefuses
from market.marketplace import earnings
from market.marketplace.earnings import Earnings
from market.marketplace.probation import SellerHistory, probation
from market.marketplace.terms import DAY_NS, MarketplaceTerms
from market.protocol.channels.statements import Voucher
from market.protocol.records.amounts import Amount
from market.protocol.records.canonical import INTEGER_MAX
from tests.databases import Kind
from tests.market.marketplace.rules.conftest import USD, Marketplace
from tests.market.marketplace.rules.dealing import Dealing
from tests.market.parties import said
from tests.market.trade import DIGEST, PRICES

SELLER = "seller:sam:"


@pytest.fixture
def kind() -> Kind:
    """Settling is tried on each kind of database; what follows from it on one."""
    return "sqlite"


def sell(house: Marketplace, user_id: str = "ann", jobs: int = 1) -> int:
    """So many requests served and settled; returns what the seller gets of it."""
    allocation, terms = house.allocate(user_id)
    dealing, before = Dealing(terms), house.earned()
    for _ in range(jobs):
        dealing.serve()
    house.settle(allocation, dealing.records)
    return house.earned() - before


def pockets(house: Marketplace) -> tuple[int, int, int]:
    """Maturing, payable, reserve."""
    return house.posted(SELLER + "maturing"), house.posted(SELLER + "payable"), house.posted(SELLER + "reserve")


def test_a_new_sellers_day_matures_after_a_week_less_the_reserve_which_follows_a_month_later(
    house: Marketplace,
) -> None:
    first = sell(house)
    house.wait(DAY_NS)
    second = sell(house)
    house.wait(6 * DAY_NS)
    house.look()
    assert pockets(house) == (first + second, 0, 0), "the day of the first sale ended less than a week ago"
    house.wait(DAY_NS)
    for _ in range(2):
        house.look()
        assert pockets(house) == (second, first - first // 10, first // 10)
    house.wait(DAY_NS)
    house.look()
    house.wait(RESERVE_DAYS * DAY_NS)
    house.look()
    assert pockets(house) == (0, first + second, 0)
    assert house.is_sound()


def test_whoever_is_new_no_more_waits_two_days_and_nothing_is_kept(house: Marketplace) -> None:
    for user_id in ("ann", "bob", "cem"):
        sell(house, user_id, jobs=7)
    assert not house.earnings.probation_of("sam").is_over
    house.wait(7 * DAY_NS)
    assert house.earnings.probation_of("sam").is_over
    house.look()
    house.wait(2 * DAY_NS)
    before, more = pockets(house), sell(house)
    house.wait(3 * DAY_NS)
    house.look()
    assert pockets(house) == (0, before[0] + before[1] + more, before[2])


@pytest.mark.parametrize(
    ("jobs", "days", "lacking"),
    [
        ({}, 30, (20, 3, 7)),
        ({"ann": 50, "bob": 1, "cem": 1}, 8, (8, 0, 0)),
        ({"ann": 10, "bob": 10}, 8, (0, 1, 0)),
        ({"ann": 10, "bob": 9, "cem": 1}, 6, (0, 0, 1)),
    ],
)
def test_a_partner_who_buys_much_is_not_enough(
    jobs: dict[str, int], days: int, lacking: tuple[int, int, int]
) -> None:
    found = probation(SellerHistory(jobs, 0 if jobs else None), MarketplaceTerms(), days * DAY_NS)
    assert (found.jobs, found.buyers, found.days) == lacking


def test_one_signature_over_a_large_number_is_no_record_of_many_jobs(house: Marketplace) -> None:
    for lanes, user_id in ((range(64), "ann"), (range(64), "bob"), (range(1), "cem")):
        allocation, terms = house.allocate(user_id)
        named = DIGEST, DIGEST, PRICES, Amount(1), Amount(1)
        vouchers = [Voucher(terms.channel, lane, INTEGER_MAX, *named) for lane in lanes]
        said_so = [said("buyer", "voucher", each, f"{each.lane}", each.seq) for each in vouchers]
        assert house.settle(allocation, said_so).reckoning.jobs == 0
    house.wait(8 * DAY_NS)
    found = house.earnings.probation_of("sam")
    assert (found.jobs, found.days) == (20, 0)


def test_a_seller_whose_earnings_cannot_be_looked_through_keeps_nobody_waiting(
    house: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sell(house)
    house.register("zoe", "zoe")
    allocation, terms = house.allocate(seller="zoe")
    house.settle(allocation, Dealing(terms, seller="zoe").serve())
    house.wait(8 * DAY_NS)
    mature = Earnings.mature

    def failing(desk: Earnings, user_id: str) -> None:
        if user_id == "sam":
            raise LedgerBusy("odd")
        mature(desk, user_id)

    monkeypatch.setattr(Earnings, "mature", failing)
    with pytest.raises(LedgerBusy):
        house.look()
    assert (house.posted("seller:zoe:maturing"), house.posted("seller:zoe:payable") > 0) == (0, True)
    assert house.posted(SELLER + "payable") == 0


def test_what_waits_for_one_dispute_keeps_nothing_of_others_waiting(
    house: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earnings, "_PAGE", 2)
    house.disputed |= {"ann", "bob"}
    for _ in range(3):
        sell(house, "ann")
    theirs = sell(house, "bob")
    house.wait(8 * DAY_NS)
    for _ in range(3):
        house.look()
    house.disputed.remove("bob")
    house.look()
    assert (house.posted(SELLER + "payable"), house.posted(SELLER + "reserve")) == (
        theirs - theirs // 10,
        theirs // 10,
    )


def test_without_days_to_wait_earnings_mature_at_once(house: Marketplace) -> None:
    house.terms = MarketplaceTerms(maturity_days_new=0, reserve_bps=0)
    house.__post_init__()
    earned = sum(sell(house) for _ in range(2))
    house.wait(1)
    house.look()
    earned += sell(house)
    house.wait(1)
    house.look()
    assert pockets(house) == (0, earned, 0)
    assert house.is_sound()


def test_what_was_paid_with_disputed_money_waits_for_the_end_of_the_dispute(house: Marketplace) -> None:
    """A stolen card buys credits and spends them at its owner's own seller."""
    honest, stolen = sell(house, "ann"), sell(house, "bob")
    house.disputed.add("bob")
    house.wait(8 * DAY_NS)
    house.look()
    assert pockets(house) == (stolen, honest - honest // 10, honest // 10)
    house.disputed.clear()
    for _ in range(2):
        house.look()
        assert house.posted(SELLER + "maturing") == 0
    assert house.earned() == honest + stolen
    assert house.is_sound()


def test_what_was_given_back_of_a_disputed_sale_is_not_all_of_it(house: Marketplace) -> None:
    sold = sell(house, "bob")
    with house.context.read() as session:
        charge_id = earned_after(session, "sam", 0, limit=1)[0].charge_id
        charge = find_charge(session, charge_id)
        assert charge
        standing = find_refund_parties(session, charge, house.books.now_ns)
    house.books.post(refund(charge, charge.charge_nano // 10, "goodwill", standing))
    rest = house.posted(SELLER + "maturing")
    assert 0 < rest < sold
    house.disputed.add("bob")
    house.wait(8 * DAY_NS)
    house.look()
    assert pockets(house) == (rest, 0, 0)
    house.disputed.clear()
    for _ in range(2):
        house.look()
    assert pockets(house) == (0, rest - rest // 10, rest // 10)


def test_proof_of_fraud_gives_back_what_has_not_matured(house: Marketplace) -> None:
    sell(house, "ann")
    house.wait(8 * DAY_NS)
    house.look()
    theirs = pockets(house)
    allocation, terms = house.allocate("bob")
    late = Dealing(terms).serve()
    sell(house, "ann")
    sell(house, "bob")
    for _ in range(2):
        house.forfeiture.forfeit("sam", "another model than the one listed")
        assert pockets(house) == theirs
    fee_nano = house.posted("income:market_fee")
    assert house.posted("user:bob:paid") == 100 * USD
    assert house.settle(allocation, late).settled_nano == 0
    house.sellers.suspend("sam", None)
    house.look()
    assert (house.settlements.due(10), house.settle(allocation, []).settled_nano) == ([], 0)
    with pytest.raises(MarketplaceRefuses, match="forfeited"):
        house.allocate("bob")
    house.sellers.suspend("sam", "odd")
    assert house.posted("user:ann:paid") == 100 * USD - sum(theirs) - fee_nano
    house.wait(40 * DAY_NS)
    house.look()
    assert pockets(house) == theirs, "nothing matures and nothing is released while somebody looks into it"
    assert house.is_sound()
