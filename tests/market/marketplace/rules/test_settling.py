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
    marketplace: Marketplace, served: list[tuple[int, int, int, int, bool]], limit_nano: int, data: st.DataObject
) -> None:
    before = marketplace.earned(), marketplace.posted("income:market_fee"), marketplace.posted("user:ann:paid")
    allocation, terms = marketplace.allocate(limit_nano=limit_nano)
    dealing = Dealing(terms)
    pieces: list[list[Record]] = []
    for lane, prompt, completion, tells, signs in served:
        promise, *receipts = dealing.serve(lane, prompt, completion, tells=tells, signs=signs)
        pieces += [[promise], *([promise, receipt] for receipt in receipts)]
    numbers = range(len(pieces))
    again = data.draw(st.lists(st.sampled_from(numbers), max_size=4))
    for n in data.draw(st.permutations([*numbers, *again])):
        outcome = marketplace.settle(allocation, pieces[n])
        assert outcome.settled_nano <= limit_nano
    marketplace.wait(ANSWER_NS)
    marketplace.look()
    due = settle(read_evidence(dealing.records, terms, STANDING), limit_nano)
    assert marketplace.settle(allocation, []).settled_nano == due.amount_nano
    fee_nano = due.amount_nano * FEE_BPS // 10_000
    assert marketplace.earned() - before[0] == due.amount_nano - fee_nano
    assert marketplace.posted("income:market_fee") - before[1] == fee_nano
    assert before[2] - marketplace.posted("user:ann:paid") == due.amount_nano
    assert marketplace.is_sound()
    marketplace.wait(24 * HOUR_NS + GRACE_NS + 1)
    marketplace.ledger.reaper.sweep()
    assert marketplace.held() == 0
    assert marketplace.is_sound()


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
            outcome = reckon(channel, USD, seen, decided, now_ms)
            assert outcome.due_nano >= max(before_nano, settle(channel).confirmed_nano)
            decided = dict(outcome.decided)
            if award_nano is not None:
                decided[lane] = Decided(1, max(award_nano, decided[lane].amount_nano if lane in decided else 0))
            now_ms += waits_ms
            outcome = reckon(channel, USD, outcome.seen, decided, now_ms)
            before_nano, seen, decided = outcome.due_nano, dict(outcome.seen), dict(outcome.decided)
    ripe = reckon(channel, USD, seen, decided, now_ms + ANSWER_MS)
    least = {n: each.amount_nano for n, each in decided.items()}
    whole_nano = sum(max(due(lane).amount_nano, least.get(n, 0)) for n, lane in channel.lanes.items())
    assert ripe.due_nano == whole_nano >= before_nano


def test_what_the_buyer_does_not_answer_is_due_after_an_hour(marketplace: Marketplace) -> None:
    """The buyer took the stream and signed for nothing."""
    allocation, terms = marketplace.allocate()
    dealing = Dealing(terms)
    outcome = marketplace.settle(allocation, dealing.serve(signs=False))
    assert (outcome.reckoning.claimed_nano, outcome.settled_nano) == (dealing.due_nano, 0)
    marketplace.wait(ANSWER_NS - 1)
    marketplace.look()
    marketplace.settle(allocation, dealing.records)
    assert marketplace.posted("seller:sam:maturing") == 0
    marketplace.wait(1)
    marketplace.look()
    assert marketplace.settle(allocation, []).settled_nano == dealing.due_nano
    assert marketplace.settlements.due(100) == []
    assert marketplace.is_sound()


def test_a_claim_at_an_answers_beginning_waits_for_the_longest_answers_end(marketplace: Marketplace) -> None:
    """The seller signs for the ceiling at once, and says no word more until its buyer gives up."""
    allocation, terms = marketplace.allocate()
    dealing = Dealing(terms)
    promise, claimed, confirmed = dealing.serve(completion_tokens=20, tells=9000)
    marketplace.settle(allocation, [promise, claimed])
    marketplace.wait(ANSWER_S_MAX * 10**9 + HOUR_NS // 4)
    marketplace.look()
    outcome = marketplace.settle(allocation, [promise, confirmed])
    marketplace.wait(ANSWER_NS)
    marketplace.look()
    assert (outcome.settled_nano, marketplace.settle(allocation, []).settled_nano) == (
        dealing.due_nano,
        dealing.due_nano,
    )
    assert marketplace.is_sound()


def test_a_buyer_who_signs_less_in_time_leaves_the_rest_disputed(marketplace: Marketplace) -> None:
    allocation, terms = marketplace.allocate()
    dealing = Dealing(terms)
    promise, claimed, confirmed = dealing.serve(tells=2000)
    marketplace.settle(allocation, [promise, claimed])
    marketplace.settle(allocation, [promise, confirmed])
    marketplace.wait(10 * ANSWER_NS)
    marketplace.look()
    outcome = marketplace.settle(allocation, [])
    assert (outcome.settled_nano, outcome.reckoning.disputed_nano > 0) == (dealing.due_nano, True)


def test_what_comes_after_the_end_is_paid_from_what_there_is_and_owed_beyond(marketplace: Marketplace) -> None:
    allocation, terms = marketplace.allocate(limit_nano=2_000_000)
    dealing = Dealing(terms)
    first = dealing.serve()
    marketplace.settle(allocation, first)
    marketplace.wait(24 * HOUR_NS + GRACE_NS + 1)
    marketplace.ledger.reaper.sweep()
    assert marketplace.held() == 0
    paid_nano = marketplace.posted("user:ann:paid")
    keep_nano = 50_000
    marketplace.allocate("ann", paid_nano - keep_nano)
    owed_nano = -keep_nano - dealing.due_nano
    dealing.serve()
    owed_nano += dealing.due_nano
    assert marketplace.settle(allocation, dealing.records).settled_nano == dealing.due_nano
    assert (marketplace.posted("asset:user_recv:ann"), owed_nano > 0) == (owed_nano, True)
    again = marketplace.settle(allocation, dealing.records)
    assert (again.settled_nano, marketplace.posted("asset:user_recv:ann")) == (dealing.due_nano, owed_nano)
    assert marketplace.is_sound()


def test_a_pool_pays_first_and_buys_nothing_from_its_own_users(marketplace: Marketplace) -> None:
    for pool in ("lab", "club"):
        marketplace.ledger.post(grants.pool_credit(f"c-{pool}", pool, USD, "test"))
    allocation, terms = marketplace.allocate(limit_nano=2 * USD, pool="club")
    dealing = Dealing(terms)
    dealing.serve()
    marketplace.settle(allocation, dealing.records)
    assert marketplace.posted("pool:club:paid") == USD - dealing.due_nano
    assert (marketplace.held(), marketplace.ledger.balance("pool:club:paid").available_nano) == (USD, 0)
    marketplace.allocate(limit_nano=USD, pool="lab")
    assert (marketplace.held(), marketplace.ledger.balance("pool:lab:paid").held_nano) == (2 * USD, 0)
    assert marketplace.is_sound()


def test_what_a_marketplace_died_over_is_booked_by_its_next_look(marketplace: Marketplace) -> None:
    allocation, terms = marketplace.allocate()
    dealing = Dealing(terms)
    dealing.serve()
    closed = Ledger(Poster(write_sessions(marketplace.engine)), marketplace.ledger.read)
    with pytest.raises(PosterStopped):
        Settlements(replace(marketplace.context, ledger=closed)).submit(
            allocation.digest, [record.raw for record in dealing.records]
        )
    assert marketplace.earned() == 0
    marketplace.look()
    net_nano = dealing.due_nano - dealing.due_nano * FEE_BPS // 10_000
    assert marketplace.earned() == net_nano
    marketplace.wait(8 * 24 * HOUR_NS)
    Earnings(replace(marketplace.context, ledger=closed), lambda _: False).mature("sam")
    assert marketplace.posted("seller:sam:maturing") == net_nano
    for _ in range(2):
        marketplace.look()
        assert (marketplace.posted("seller:sam:maturing"), marketplace.earned()) == (0, net_nano)
    assert marketplace.settlements.due(10) == []
    assert marketplace.is_sound()


def test_an_allocation_whose_credits_could_not_be_put_aside_is_not_another_one_later(
    marketplace: Marketplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as away:

        def busy(*_: object, **__: object) -> None:
            raise LedgerBusy("there are many")

        away.setattr(marketplace.ledger.poster, "submit", busy)
        with pytest.raises(LedgerBusy):
            marketplace.allocate(limit_nano=90 * USD, allocation_id="a-same")
    with pytest.raises(MarketplaceRefuses, match="used for another allocation"):
        marketplace.allocate(limit_nano=USD, allocation_id="a-same")
    marketplace.allocate(limit_nano=90 * USD, allocation_id="a-same")
    assert marketplace.held() == 90 * USD


def test_an_allocation_is_worth_its_record(marketplace: Marketplace) -> None:
    with pytest.raises(MarketplaceRefuses, match=r"at least 0\.001 USD"):
        marketplace.allocate(limit_nano=LIMIT_NANO_MIN - 1)
    marketplace.allocate(limit_nano=LIMIT_NANO_MIN)
