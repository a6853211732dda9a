"""What the ledger and the database may do to a request, as the caller sees it."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from sqlalchemy.exc import OperationalError

import accounting
from accounting.errors import (
    AccountUnknown,
    AlreadyResolved,
    DatabaseFailing,
    HoldExpired,
    InsufficientCredit,
    LedgerBroken,
    LedgerBusy,
    LedgerError,
    PosterStopped,
    PostingRefused,
)
from accounting.payments.errors import PayerFrozen
from gateway.api.accounting.keyed import _is_final
from gateway.errors import PaymentRefused, to_api_error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (LedgerBusy("full"), 503, "ledger_busy"),
        (PosterStopped("closed"), 503, "ledger_unavailable"),
        (LedgerBroken("equation", "both sides are equal"), 503, "ledger_broken"),
        (PayerFrozen("ann", "dispute dp_1"), 403, "payments_frozen"),
        (DatabaseFailing("gone"), 503, "database_unavailable"),
        (InsufficientCredit("user:ann:paid", 2, 1), 402, "insufficient_credit"),
        (AccountUnknown("user:a b:paid"), 403, "account_unknown"),
    ],
)
def test_the_ledgers_refusals_are_no_mistakes_of_ours(error: LedgerError, status: int, code: str) -> None:
    answer = to_api_error(error)
    assert (answer.status, answer.code) == (status, code)
    # Accounts, amounts and rules are for operators.
    assert str(error) not in answer.message


def test_no_refusal_of_the_ledger_is_a_mistake_of_the_gateway() -> None:
    """Every class that there is, also those of rooms that this file does not know."""
    for module in pkgutil.walk_packages(accounting.__path__, "accounting."):
        if module.name.endswith(".errors"):
            importlib.import_module(module.name)
    kinds = list(_below(LedgerError))
    assert {"AlreadyResolved", "StripeUnavailable", "Deposed"} <= {kind.__name__ for kind in kinds}
    # Made without its arguments: what is looked at is the class alone.
    answers = {kind.__name__: to_api_error(kind.__new__(kind)) for kind in kinds}
    assert {name for name, answer in answers.items() if answer.status >= 500 and answer.status != 503} == set()
    assert {name for name, answer in answers.items() if answer.code is None} <= {"PostingInvalid"}


def _below(kind: type[LedgerError]) -> Iterator[type[LedgerError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def test_a_refusal_that_may_pass_is_not_kept_under_its_key() -> None:
    assert [_is_final(error) for error in (InsufficientCredit("user:ann:paid", 2, 1), PaymentRefused("no"))] == [
        True
    ] * 2
    passing = (AlreadyResolved("h"), HoldExpired("h"), PostingRefused("x"), LedgerBusy("full"))
    assert not any(_is_final(error) for error in passing)


def test_a_database_that_is_away_does_not_show_what_it_was_asked() -> None:
    answer = to_api_error(OperationalError("SELECT digest", {"digest": "abc"}, Exception("10.0.0.7 refused")))
    assert (answer.status, answer.headers) == (503, ((b"retry-after", b"1"),))
    assert "digest" not in answer.message
    assert "10.0.0.7" not in answer.message
