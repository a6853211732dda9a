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
from tests.market.parties import signed_record
from tests.market.trade import DIGEST, PRICES

SELLER = "seller:sam:"


@pytest.fixture
def kind() -> Kind:
    """Settling is tried on each kind of database; what follows from it on one."""
    return "sqlite"


def sell(marketplace: Marketplace, user_id: str = "ann", jobs: int = 1) -> int:
    """So many requests served and settled; returns what the seller gets of it."""
    allocation, terms = marketplace.allocate(user_id)
    dealing, before = Dealing(terms), marketplace.earned()
    for _ in range(jobs):
        dealing.serve()
    marketplace.settle(allocation, dealing.records)
    return marketplace.earned() - before


def pockets(marketplace: Marketplace) -> tuple[int, int, int]:
    """Maturing, payable, reserve."""
    return (
        marketplace.posted(SELLER + "maturing"),
        marketplace.posted(SELLER + "payable"),
        marketplace.posted(SELLER + "reserve"),
    )


def test_a_new_sellers_day_matures_after_a_week_less_the_reserve_which_follows_a_month_later(
    marketplace: Marketplace,
) -> None:
    first = sell(marketplace)
    marketplace.wait(DAY_NS)
    second = sell(marketplace)
    marketplace.wait(6 * DAY_NS)
    marketplace.look()
    assert pockets(marketplace) == (first + second, 0, 0), "the day of the first sale ended less than a week ago"
    marketplace.wait(DAY_NS)
    for _ in range(2):
        marketplace.look()
        assert pockets(marketplace) == (second, first - first // 10, first // 10)
    marketplace.wait(DAY_NS)
    marketplace.look()
    marketplace.wait(RESERVE_DAYS * DAY_NS)
    marketplace.look()
    assert pockets(marketplace) == (0, first + second, 0)
    assert marketplace.is_sound()


def test_a_graduated_seller_waits_two_days_and_has_no_reserve(marketplace: Marketplace) -> None:
    for user_id in ("ann", "bob", "cem"):
        sell(marketplace, user_id, jobs=7)
    assert not marketplace.earnings.probation_of("sam").is_over
    marketplace.wait(7 * DAY_NS)
    assert marketplace.earnings.probation_of("sam").is_over
    marketplace.look()
    marketplace.wait(2 * DAY_NS)
    before, more = pockets(marketplace), sell(marketplace)
    marketplace.wait(3 * DAY_NS)
    marketplace.look()
    assert pockets(marketplace) == (0, before[0] + before[1] + more, before[2])


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


def test_one_signature_over_a_large_number_is_no_record_of_many_jobs(marketplace: Marketplace) -> None:
    for lanes, user_id in ((range(64), "ann"), (range(64), "bob"), (range(1), "cem")):
        allocation, terms = marketplace.allocate(user_id)
        named = DIGEST, DIGEST, PRICES, Amount(1), Amount(1)
        vouchers = [Voucher(terms.channel, lane, INTEGER_MAX, *named) for lane in lanes]
        said_so = [signed_record("buyer", "voucher", each, f"{each.lane}", each.seq) for each in vouchers]
        assert marketplace.settle(allocation, said_so).reckoning.jobs == 0
    marketplace.wait(8 * DAY_NS)
    found = marketplace.earnings.probation_of("sam")
    assert (found.jobs, found.days) == (20, 0)


def test_a_seller_whose_earnings_cannot_be_read_delays_no_other(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sell(marketplace)
    marketplace.register("zoe", "zoe")
    allocation, terms = marketplace.allocate(seller="zoe")
    marketplace.settle(allocation, Dealing(terms, seller="zoe").serve())
    marketplace.wait(8 * DAY_NS)
    mature = Earnings.mature

    def failing(desk: Earnings, user_id: str) -> None:
        if user_id == "sam":
            raise LedgerBusy("odd")
        mature(desk, user_id)

    monkeypatch.setattr(Earnings, "mature", failing)
    with pytest.raises(LedgerBusy):
        marketplace.look()
    assert (marketplace.posted("seller:zoe:maturing"), marketplace.posted("seller:zoe:payable") > 0) == (0, True)
    assert marketplace.posted(SELLER + "payable") == 0


def test_what_waits_for_one_dispute_keeps_nothing_of_others_waiting(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earnings, "_PAGE", 2)
    marketplace.disputed |= {"ann", "bob"}
    for _ in range(3):
        sell(marketplace, "ann")
    theirs = sell(marketplace, "bob")
    marketplace.wait(8 * DAY_NS)
    for _ in range(3):
        marketplace.look()
    marketplace.disputed.remove("bob")
    marketplace.look()
    assert (marketplace.posted(SELLER + "payable"), marketplace.posted(SELLER + "reserve")) == (
        theirs - theirs // 10,
        theirs // 10,
    )


def test_without_days_to_wait_earnings_mature_at_once(marketplace: Marketplace) -> None:
    marketplace.terms = MarketplaceTerms(maturity_days_new=0, reserve_bps=0)
    marketplace.__post_init__()
    earned = sum(sell(marketplace) for _ in range(2))
    marketplace.wait(1)
    marketplace.look()
    earned += sell(marketplace)
    marketplace.wait(1)
    marketplace.look()
    assert pockets(marketplace) == (0, earned, 0)
    assert marketplace.is_sound()


def test_what_was_paid_with_disputed_money_waits_for_the_end_of_the_dispute(marketplace: Marketplace) -> None:
    """A stolen card buys credits and spends them at its owner's own seller."""
    honest, stolen = sell(marketplace, "ann"), sell(marketplace, "bob")
    marketplace.disputed.add("bob")
    marketplace.wait(8 * DAY_NS)
    marketplace.look()
    assert pockets(marketplace) == (stolen, honest - honest // 10, honest // 10)
    marketplace.disputed.clear()
    for _ in range(2):
        marketplace.look()
        assert marketplace.posted(SELLER + "maturing") == 0
    assert marketplace.earned() == honest + stolen
    assert marketplace.is_sound()


def test_what_was_given_back_of_a_disputed_sale_is_not_all_of_it(marketplace: Marketplace) -> None:
    sold = sell(marketplace, "bob")
    with marketplace.context.read() as session:
        charge_id = earned_after(session, "sam", 0, limit=1)[0].charge_id
        charge = find_charge(session, charge_id)
        assert charge
        standing = find_refund_parties(session, charge, marketplace.ledger.now_ns)
    marketplace.ledger.post(refund(charge, charge.charge_nano // 10, "goodwill", standing))
    rest = marketplace.posted(SELLER + "maturing")
    assert 0 < rest < sold
    marketplace.disputed.add("bob")
    marketplace.wait(8 * DAY_NS)
    marketplace.look()
    assert pockets(marketplace) == (rest, 0, 0)
    marketplace.disputed.clear()
    for _ in range(2):
        marketplace.look()
    assert pockets(marketplace) == (0, rest - rest // 10, rest // 10)


def test_proof_of_fraud_gives_back_what_has_not_matured(marketplace: Marketplace) -> None:
    sell(marketplace, "ann")
    marketplace.wait(8 * DAY_NS)
    marketplace.look()
    theirs = pockets(marketplace)
    allocation, terms = marketplace.allocate("bob")
    late = Dealing(terms).serve()
    sell(marketplace, "ann")
    sell(marketplace, "bob")
    for _ in range(2):
        marketplace.forfeiture.forfeit("sam", "another model than the one listed")
        assert pockets(marketplace) == theirs
    fee_nano = marketplace.posted("income:market_fee")
    assert marketplace.posted("user:bob:paid") == 100 * USD
    assert marketplace.settle(allocation, late).settled_nano == 0
    marketplace.sellers.suspend("sam", None)
    marketplace.look()
    assert (marketplace.settlements.due(10), marketplace.settle(allocation, []).settled_nano) == ([], 0)
    with pytest.raises(MarketplaceRefuses, match="forfeited"):
        marketplace.allocate("bob")
    marketplace.sellers.suspend("sam", "odd")
    assert marketplace.posted("user:ann:paid") == 100 * USD - sum(theirs) - fee_nano
    marketplace.wait(40 * DAY_NS)
    marketplace.look()
    assert pockets(marketplace) == theirs, "nothing matures and nothing is released during an investigation"
    assert marketplace.is_sound()
