"""What the books and the database may do to a request, as the caller sees it."""

import pytest
from sqlalchemy.exc import OperationalError

from accounting.errors import (
    AccountUnknown,
    DatabaseFailing,
    InsufficientCredit,
    LedgerBusy,
    LedgerError,
    PosterStopped,
)
from gateway.errors import to_api_error


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (LedgerBusy("full"), 503, "ledger_busy"),
        (PosterStopped("closed"), 503, "ledger_unavailable"),
        (DatabaseFailing("gone"), 503, "ledger_unavailable"),
        (InsufficientCredit("user:ann:paid", 2, 1), 402, "insufficient_credit"),
        (AccountUnknown("user:a b:paid"), 403, "account_unknown"),
    ],
)
def test_the_books_refusals_are_no_mistakes_of_ours(error: LedgerError, status: int, code: str) -> None:
    answer = to_api_error(error)
    assert (answer.status, answer.code, answer.message) == (status, code, str(error))


def test_a_database_that_is_away_does_not_show_what_it_was_asked() -> None:
    answer = to_api_error(OperationalError("SELECT digest", {"digest": "abc"}, Exception("10.0.0.7 refused")))
    assert (answer.status, answer.headers) == (503, ((b"retry-after", b"1"),))
    assert "digest" not in answer.message
    assert "10.0.0.7" not in answer.message
