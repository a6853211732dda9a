"""What cannot be booked is refused where it is made, before it can sink the group it would travel in."""

from typing import Any

import pytest

from accounting.errors import AccountUnknown, AmountInvalid, PostingInvalid
from accounting.ledger.postings import Leg, Posting
from accounting.money import MAX_EVENT_NANO
from accounting.rules import grants
from accounting.spending.holds import HOLD_MAX_NS
from tests.accounting.ledgers import START_NS, LedgerService, usage

ANN, BANK = "user:ann:paid", "asset:bank"


@pytest.mark.parametrize("amount", [0, -1, 1.0, True, MAX_EVENT_NANO + 1, 2**64])
def test_an_amount_is_a_whole_number_that_one_event_may_move(amount: Any) -> None:
    with pytest.raises(AmountInvalid):
        Leg(BANK, ANN, amount)


@pytest.mark.parametrize("number", [1.0, True, -1, 2**63])
def test_a_time_or_number_is_a_whole_one_that_fits(number: Any) -> None:
    with pytest.raises(AmountInvalid):
        Leg(BANK, ANN, 1, "pending", expires_ns=number)
    with pytest.raises(AmountInvalid):
        Leg(BANK, ANN, 1, "void", pending_seq=number)


@pytest.mark.parametrize(
    "code", ["user::paid", "user:ann", "user:a b:paid", "user:ånn:paid", "cash", "", ANN + "\n"]
)
def test_only_the_chart_opens_accounts(code: str) -> None:
    with pytest.raises(AccountUnknown):
        Leg(BANK, code, 1)


@pytest.mark.parametrize(
    "leg",
    [
        {"credit": "cu:supply:cluster"},
        {"credit": BANK},
        {"phase": "post"},
        {"pending_seq": 1},
        {"expires_ns": 1},
        {"phase": "pending"},
        {"phase": "void", "pending_seq": 1, "expires_ns": 1},
    ],
    ids=repr,
)
def test_a_leg_may_not_contradict_itself(leg: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"debit": BANK, "credit": ANN, "amount_nano": 1} | leg
    with pytest.raises(PostingInvalid):
        Leg(**fields)


@pytest.mark.parametrize("text", ["x" * 513, "a\0b", "\ud800"], ids=["long", "zero byte", "half a pair"])
def test_a_text_must_fit_into_every_database(text: str) -> None:
    for make in (
        lambda: Posting(text, "use", "r1"),
        lambda: Posting("use:r1", "use", "r1", meta={"why": text}),
        lambda: usage("r1", model=text),
    ):
        with pytest.raises(PostingInvalid):
            make()


@pytest.mark.parametrize("count", [-1, 1.5, 10**9 + 1, None])
def test_a_usage_row_counts_in_whole_numbers(count: Any) -> None:
    with pytest.raises(AmountInvalid):
        usage("r1", completion_tokens=count)


@pytest.mark.parametrize("deadline_ns", [START_NS, START_NS + HOLD_MAX_NS + 1, START_NS // 1000])
def test_a_hold_ends_within_a_day(ledger: LedgerService, deadline_ns: int) -> None:
    with pytest.raises(PostingInvalid):
        ledger.holds.place("r1", "ann", 1, deadline_ns)


def test_any_text_that_fits_comes_back(ledger: LedgerService) -> None:
    posted = ledger.post(grants.manual_credit("c1", "ann", 1, 'naïve "東京" \\ 🏞'))
    assert posted.event_seq == 1
    assert ledger.post(grants.manual_credit("c1", "ann", 1, 'naïve "東京" \\ 🏞')).replayed
