"""A seller touches its model only for a voucher that will pay; partners stay within what they agreed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.errors import StatementInvalid
from market.protocol.channels.admission import ChannelCredit, PricedRequest, refusal, reserved_nano
from market.protocol.channels.channel import Channel, delivered, settle
from market.protocol.channels.credit_line import (
    CreditLine,
    Paid,
    Payment,
    agree,
    first_owes_nano,
    limit_nano,
    read_payment,
)
from market.protocol.channels.next_voucher import VoucherOrder, free_lane, next_voucher
from market.protocol.channels.statements import Promise
from market.protocol.channels.terms import LANES_MAX
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from tests.market.parties import NOW_MS, STANDING, id_of, signed_record
from tests.market.trade import BUYER, DIGEST, PRICES, SELLER, TERMS, receive, vouch

OFFERED = {DIGEST: PRICES}
PRICED = PricedRequest(DIGEST, 500)


def reason(channel: Channel, *voucher: int, **changed: Any) -> str | None:
    given: dict[str, Any] = {
        "priced": PRICED,
        "offered": OFFERED,
        "credit": ChannelCredit(10_000, NOW_MS + 3_600_000),
    }
    given |= {"open_ceilings": {}, "now_ms": NOW_MS} | changed
    refused = refusal(channel, vouch(*voucher), **given)
    assert refused is None or refused.sentence
    return refused.reason if refused else None


def served(amount_tokens: int, *, is_final: bool = True) -> Channel:
    claim = receive("seller", vouch(0, 4, 0, 10**9), 0, amount_tokens, 0, is_final=is_final)
    return delivered(Channel(TERMS), claim, SELLER)


def test_a_voucher_that_pays_is_taken_also_when_some_before_it_were_lost() -> None:
    assert reason(Channel(TERMS), 0, 1, 0, 500) is None
    assert reason(served(0), 0, 9, 0, 500) is None


def test_each_thing_that_stands_against_a_voucher_has_its_name() -> None:
    empty, voucher = Channel(TERMS), (0, 1, 0, 500)
    owed_nano = served(100).lanes[0].claim
    assert owed_nano is not None
    assert reason(served(0), 0, 4, 0, 500) == "spent"
    assert reason(served(0, is_final=False), 0, 5, 0, 500) == "busy"
    assert reason(empty, *voucher, open_ceilings={0: 500}) == "busy"
    assert reason(served(100), 0, 5, 0, 500) == "unpaid"
    assert reason(served(100), 0, 5, owed_nano.amount_nano, 90_000, credit=ChannelCredit(10**6)) is None
    assert reason(empty, *voucher, offered={DIGEST: Prices(Amount(0), Amount(0), Amount(0))}) == "prices"
    assert reason(empty, *voucher, offered={}) == "prices"
    assert reason(empty, *voucher, priced=PricedRequest("f" * 64, 500)) == "request"
    assert reason(empty, 0, 1, 0, 499) == "low"
    assert reason(empty, *voucher, credit=ChannelCredit(10_000, NOW_MS + 60_000)) == "ended"
    assert reason(empty, *voucher, credit=ChannelCredit(499)) == "limit"
    assert reason(empty, *voucher, open_ceilings={1: 9_501}) == "limit"
    assert reason(empty, *voucher, open_ceilings={1: 9_500}) is None


steps_of_four_lanes = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 900), st.booleans()), max_size=30
)


@given(steps_of_four_lanes)
def test_what_is_admitted_never_passes_the_limit(steps: list[tuple[int, int, int, bool]]) -> None:
    """Requests begin and end on four lanes, some go on for a while, and each delivers what its ceiling lets it."""
    channel, running, credit = Channel(TERMS), dict[int, Promise](), ChannelCredit(3_000)
    for seq, (lane, tokens, most_nano, ends) in enumerate(steps, 1):
        ceilings = {n: int(promise.voucher.ceiling_nano) for n, promise in running.items()}
        order = VoucherOrder(DIGEST, DIGEST, PRICES, most_nano)
        limit = {
            "limit_nano": credit.limit_nano,
            "open_ceilings": {n: v for n, v in ceilings.items() if n != lane},
        }
        voucher = next_voucher(channel, lane, seq, order, **limit)  # type: ignore[arg-type]
        if voucher and lane not in running:
            promise = vouch(lane, voucher.seq, int(voucher.base_nano), int(voucher.ceiling_nano))
            priced = PricedRequest(DIGEST, most_nano)
            assert (
                refusal(channel, promise, priced, OFFERED, credit, open_ceilings=ceilings, now_ms=NOW_MS) is None
            )
            running[lane] = promise
        if ends and (promised := running.pop(lane, None)):
            done = receive("seller", promised, 0, tokens, 0, is_final=True)
            signed = receive("buyer", promised, 0, tokens, 0, is_final=True)
            channel = delivered(delivered(channel, done, SELLER), signed, BUYER)
        ceilings = {n: int(promise.voucher.ceiling_nano) for n, promise in running.items()}
        assert settle(channel).amount_nano <= reserved_nano(channel, ceilings) <= credit.limit_nano


def test_a_channel_has_so_many_lanes() -> None:
    assert free_lane([]) == 0
    assert free_lane([0, 1, 3]) == 2
    assert free_lane(range(LANES_MAX)) is None


ONE, OTHER = sorted((id_of("ann"), id_of("bob")))
NAMES = {id_of("ann"): "ann", id_of("bob"): "bob"}
LINE = CreditLine(ONE, OTHER, Amount(1_000), Amount(400), NOW_MS)
YEAR_MS = 365 * 24 * 3_600_000


def test_a_line_is_open_when_both_have_signed_it() -> None:
    ann, bob = (signed_record(name, "credit_line", LINE, lasts_ms=YEAR_MS) for name in ("ann", "bob"))
    assert agree(ann, bob, STANDING) == agree(bob, ann, STANDING) == LINE
    other = CreditLine(ONE, OTHER, Amount(1_001), Amount(400), NOW_MS)
    forged = signed_record("eve", "credit_line", LINE, lasts_ms=YEAR_MS, issuer=bob.issuer)
    for pair in ((ann, ann), (ann, forged), (ann, signed_record("bob", "credit_line", other, lasts_ms=YEAR_MS))):
        with pytest.raises(StatementInvalid):
            agree(*pair, STANDING)
    assert LINE.bought_by(ONE).seller == OTHER
    assert LINE.bought_by(ONE).channel != LINE.bought_by(OTHER).channel


def test_only_the_receiver_says_that_it_was_paid() -> None:
    payment = Payment(LINE.id, ONE, Amount(70))
    assert read_payment(signed_record(NAMES[OTHER], "payment", payment), LINE, STANDING) == Paid(70, 0)
    for by, wrong in ((NAMES[ONE], payment), (NAMES[OTHER], Payment(DIGEST, ONE, Amount(70)))):
        with pytest.raises(StatementInvalid):
            read_payment(signed_record(by, "payment", wrong), LINE, STANDING)
    assert Paid(70, 0).merged(Paid(50, 9)) == Paid(70, 9)


@given(st.lists(st.tuples(st.sampled_from(["first", "second", "pay_first", "pay_second"]), st.integers(1, 900))))
def test_partners_never_owe_more_than_they_agreed(steps: list[tuple[str, int]]) -> None:
    first_nano = second_nano = 0
    paid = Paid()
    for what, amount_nano in steps:
        if what == "first" and first_nano + amount_nano <= limit_nano(LINE, ONE, second_nano, paid):
            first_nano += amount_nano
        if what == "second" and second_nano + amount_nano <= limit_nano(LINE, OTHER, first_nano, paid):
            second_nano += amount_nano
        owed_nano = first_owes_nano(first_nano, second_nano, paid)
        if what == "pay_first":
            paid = paid.merged(Paid(paid.first_nano + max(0, min(amount_nano, owed_nano)), 0))
        if what == "pay_second":
            paid = paid.merged(Paid(0, paid.second_nano + max(0, min(amount_nano, -owed_nano))))
        assert -400 <= first_owes_nano(first_nano, second_nano, paid) <= 1_000
