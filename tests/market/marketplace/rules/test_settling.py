"""What both sides have signed becomes money: in any order, in parts, twice, late; the same sum in the end."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounting.errors import LedgerBusy, PosterStopped
from accounting.ledger.poster import Poster
from accounting.payments.ledger import Ledger
from accounting.rules import grants
from market.errors import MarketplaceRefuses
from market.marketplace.allocations import LIMIT_NANO_MIN
from market.marketplace.amounts_due import Decided, Seen, reckon
from market.marketplace.context import MS_NS
from market.marketplace.earnings import Earnings
from market.marketplace.settlements import Settlements
from market.marketplace.terms import ANSWER_MS
from market.protocol.channels.channel import Channel, due, merge, settle
from market.protocol.channels.evidence import read_evidence
from market.protocol.channels.terms import ANSWER_S_MAX, SETTLE_GRACE_MS, ChannelTerms
from market.protocol.records.envelope import Record
from runtime.database import write_sessions
from tests.market.marketplace.rules.conftest import HOUR_NS, USD, Marketplace
from tests.market.marketplace.rules.dealing import Dealing
from tests.market.parties import STANDING, id_of
from tests.market.trade import DIGEST

ANSWER_NS = ANSWER_MS * MS_NS
GRACE_NS = SETTLE_GRACE_MS * MS_NS
FEE_BPS = 500

requests = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 3000),
        st.integers(0, 3000),
        st.sampled_from((0, 0, 10, 2000)),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(served=requests, limit_nano=st.sampled_from((2_000_000, USD)), data=st.data())
def test_whatever_comes_how_often_and_in_which_order_the_same_is_booked(
    house: Marketplace, served: list[tuple[int, int, int, int, bool]], limit_nano: int, data: st.DataObject
) -> None:
    before = house.earned(), house.posted("income:market_fee"), house.posted("user:ann:paid")
    allocation, terms = house.allocate(limit_nano=limit_nano)
    dealing = Dealing(terms)
    pieces: list[list[Record]] = []
    for lane, prompt, completion, tells, signs in served:
        promise, *receipts = dealing.serve(lane, prompt, completion, tells=tells, signs=signs)
        pieces += [[promise], *([promise, receipt] for receipt in receipts)]
    numbers = range(len(pieces))
    again = data.draw(st.lists(st.sampled_from(numbers), max_size=4))
    for n in data.draw(st.permutations([*numbers, *again])):
        told = house.settle(allocation, pieces[n])
        assert told.settled_nano <= limit_nano
    house.wait(ANSWER_NS)
    house.look()
    due = settle(read_evidence(dealing.records, terms, STANDING), limit_nano)
    assert house.settle(allocation, []).settled_nano == due.amount_nano
    fee_nano = due.amount_nano * FEE_BPS // 10_000
    assert house.earned() - before[0] == due.amount_nano - fee_nano
    assert house.posted("income:market_fee") - before[1] == fee_nano
    assert before[2] - house.posted("user:ann:paid") == due.amount_nano
    assert house.is_sound()
    house.wait(24 * HOUR_NS + GRACE_NS + 1)
    house.books.reaper.sweep()
    assert house.held() == 0
    assert house.is_sound()


lanes = st.dictionaries(
    st.integers(0, 3),
    st.tuples(st.integers(1, 900), st.sampled_from((0, 900)), st.booleans(), st.sampled_from((None, 1, 500_000))),
    min_size=1,
)


@given(known=lanes, later=lanes, order=st.booleans(), waits_ms=st.sampled_from((0, ANSWER_MS)))
def test_neither_time_nor_decisions_nor_later_records_ever_lower_what_is_due(
    known: dict[int, tuple[int, int, bool, int | None]],
    later: dict[int, tuple[int, int, bool, int | None]],
    order: bool,
    waits_ms: int,
) -> None:
    """Of each lane: tokens, tokens more that the seller tells, whether the buyer signs, and what was awarded."""
    terms = ChannelTerms(id_of("buyer"), id_of("seller"), DIGEST)
    dealing, decided = Dealing(terms), dict[int, Decided]()
    channel, seen, before_nano, now_ms = Channel(terms), dict[int, Seen](), 0, 0
    for some in (known, later):
        for lane, (tokens, tells, signs, award_nano) in some.items():
            made = read_evidence(dealing.serve(lane, 0, tokens, tells=tells, signs=signs), terms, STANDING)
            channel = merge(channel, made) if order else merge(made, channel)
            told = reckon(channel, USD, seen, decided, now_ms)
            assert told.due_nano >= max(before_nano, settle(channel).confirmed_nano)
            decided = dict(told.decided)
            if award_nano is not None:
                decided[lane] = Decided(1, max(award_nano, decided[lane].amount_nano if lane in decided else 0))
            now_ms += waits_ms
            told = reckon(channel, USD, told.seen, decided, now_ms)
            before_nano, seen, decided = told.due_nano, dict(told.seen), dict(told.decided)
    ripe = reckon(channel, USD, seen, decided, now_ms + ANSWER_MS)
    least = {n: each.amount_nano for n, each in decided.items()}
    whole_nano = sum(max(due(lane).amount_nano, least.get(n, 0)) for n, lane in channel.lanes.items())
    assert ripe.due_nano == whole_nano >= before_nano


def test_what_the_buyer_does_not_answer_is_due_after_an_hour(house: Marketplace) -> None:
    """The buyer took the stream and signed for nothing."""
    allocation, terms = house.allocate()
    dealing = Dealing(terms)
    told = house.settle(allocation, dealing.serve(signs=False))
    assert (told.reckoning.claimed_nano, told.settled_nano) == (dealing.due_nano, 0)
    house.wait(ANSWER_NS - 1)
    house.look()
    house.settle(allocation, dealing.records)
    assert house.posted("seller:sam:maturing") == 0
    house.wait(1)
    house.look()
    assert house.settle(allocation, []).settled_nano == dealing.due_nano
    assert house.settlements.due(100) == []
    assert house.is_sound()


def test_a_claim_at_an_answers_beginning_waits_for_the_longest_answers_end(house: Marketplace) -> None:
    """The seller signs for the ceiling at once, and says no word more until its buyer gives up."""
    allocation, terms = house.allocate()
    dealing = Dealing(terms)
    promise, claimed, confirmed = dealing.serve(completion_tokens=20, tells=9000)
    house.settle(allocation, [promise, claimed])
    house.wait(ANSWER_S_MAX * 10**9 + HOUR_NS // 4)
    house.look()
    told = house.settle(allocation, [promise, confirmed])
    house.wait(ANSWER_NS)
    house.look()
    assert (told.settled_nano, house.settle(allocation, []).settled_nano) == (dealing.due_nano, dealing.due_nano)
    assert house.is_sound()


def test_a_buyer_who_signs_less_in_time_leaves_the_rest_disputed(house: Marketplace) -> None:
    allocation, terms = house.allocate()
    dealing = Dealing(terms)
    promise, claimed, confirmed = dealing.serve(tells=2000)
    house.settle(allocation, [promise, claimed])
    house.settle(allocation, [promise, confirmed])
    house.wait(10 * ANSWER_NS)
    house.look()
    told = house.settle(allocation, [])
    assert (told.settled_nano, told.reckoning.disputed_nano > 0) == (dealing.due_nano, True)


def test_what_comes_after_the_end_is_paid_from_what_there_is_and_owed_beyond(house: Marketplace) -> None:
    allocation, terms = house.allocate(limit_nano=2_000_000)
    dealing = Dealing(terms)
    first = dealing.serve()
    house.settle(allocation, first)
    house.wait(24 * HOUR_NS + GRACE_NS + 1)
    house.books.reaper.sweep()
    assert house.held() == 0
    paid_nano = house.posted("user:ann:paid")
    keep_nano = 50_000
    house.allocate("ann", paid_nano - keep_nano)
    owed_nano = -keep_nano - dealing.due_nano
    dealing.serve()
    owed_nano += dealing.due_nano
    assert house.settle(allocation, dealing.records).settled_nano == dealing.due_nano
    assert (house.posted("asset:user_recv:ann"), owed_nano > 0) == (owed_nano, True)
    again = house.settle(allocation, dealing.records)
    assert (again.settled_nano, house.posted("asset:user_recv:ann")) == (dealing.due_nano, owed_nano)
    assert house.is_sound()


def test_a_pool_pays_first_and_buys_nothing_from_its_own_users(house: Marketplace) -> None:
    for pool in ("lab", "club"):
        house.books.post(grants.pool_credit(f"c-{pool}", pool, USD, "test"))
    allocation, terms = house.allocate(limit_nano=2 * USD, pool="club")
    dealing = Dealing(terms)
    dealing.serve()
    house.settle(allocation, dealing.records)
    assert house.posted("pool:club:paid") == USD - dealing.due_nano
    assert (house.held(), house.books.balance("pool:club:paid").available_nano) == (USD, 0)
    house.allocate(limit_nano=USD, pool="lab")
    assert (house.held(), house.books.balance("pool:lab:paid").held_nano) == (2 * USD, 0)
    assert house.is_sound()


def test_what_a_house_died_over_is_booked_by_its_next_look(house: Marketplace) -> None:
    allocation, terms = house.allocate()
    dealing = Dealing(terms)
    dealing.serve()
    closed = Ledger(Poster(write_sessions(house.engine)), house.books.read)
    with pytest.raises(PosterStopped):
        Settlements(replace(house.context, ledger=closed)).submit(
            allocation.digest, [record.raw for record in dealing.records]
        )
    assert house.earned() == 0
    house.look()
    net_nano = dealing.due_nano - dealing.due_nano * FEE_BPS // 10_000
    assert house.earned() == net_nano
    house.wait(8 * 24 * HOUR_NS)
    Earnings(replace(house.context, ledger=closed), lambda _: False).mature("sam")
    assert house.posted("seller:sam:maturing") == net_nano
    for _ in range(2):
        house.look()
        assert (house.posted("seller:sam:maturing"), house.earned()) == (0, net_nano)
    assert house.settlements.due(10) == []
    assert house.is_sound()


def test_an_allocation_whose_credits_could_not_be_put_aside_is_not_another_one_later(
    house: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as away:

        def busy(*_: object, **__: object) -> None:
            raise LedgerBusy("there are many")

        away.setattr(house.books.poster, "submit", busy)
        with pytest.raises(LedgerBusy):
            house.allocate(limit_nano=90 * USD, allocation_id="a-same")
    with pytest.raises(MarketplaceRefuses, match="used for another allocation"):
        house.allocate(limit_nano=USD, allocation_id="a-same")
    house.allocate(limit_nano=90 * USD, allocation_id="a-same")
    assert house.held() == 90 * USD


def test_an_allocation_is_worth_its_record(house: Marketplace) -> None:
    with pytest.raises(MarketplaceRefuses, match=r"at least 0\.001 USD"):
        house.allocate(limit_nano=LIMIT_NANO_MIN - 1)
    house.allocate(limit_nano=LIMIT_NANO_MIN)
