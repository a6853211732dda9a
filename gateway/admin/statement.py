"""Statements: the newest transfers of several accounts together."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import StatementLine, statement
from accounting.money import format_usd
from accounting.spending.credit_grants import grants_of
from gateway.admin.authority import Authority, managed, user_of
from runtime.times import at

COLUMNS = ("id", "event", "time", "kind", "ref", "phase", "account", "counterpart", "amount")
_GRANTS_MAX = 100
_PAGE = 1000


def accounts_of_user(session: Session, user_id: str) -> dict[str, str]:
    """Return the accounts that make up a user's statement, by their codes."""
    grants = [chart.user_promo(user_id, left.grant.id) for left in grants_of(session, user_id, limit=_GRANTS_MAX)]
    codes = (chart.user_paid(user_id), chart.user_receivable(user_id), *grants)
    return dict(zip(codes, codes, strict=True))


def accounts_of(
    session: Session, authority: Authority, user: str | None, organization: str | None
) -> dict[str, str]:
    """Return the accounts of a statement: a user's, by default the caller's, or those of an organization balance.

    Raises RequestInvalid, RoleForbids, NotFound.
    """
    if organization is not None:
        code = chart.pool_paid(managed(authority, organization))
        return {code: code}
    return accounts_of_user(session, user_of(authority, user))


def newest_of(
    authority: Authority, user: str, *, organization: str | None, limit: int
) -> list[tuple[str, StatementLine]]:
    """Return the newest lines of a user or an organization, beside a running gateway or without one.

    Raises RequestInvalid, RoleForbids, NotFound.
    """
    with authority.directory.read() as session:
        return newest_lines(session, accounts_of(session, authority, user, organization), None, limit)


def newest_lines(
    session: Session, accounts: Mapping[str, str], before_seq: int | None, limit: int
) -> list[tuple[str, StatementLine]]:
    """Return the newest lines of these accounts, given by name with their codes, each with its account's name.

    A transfer between two of them is a line of the first.
    """
    found: dict[int, tuple[str, StatementLine]] = {}
    for name, code in accounts.items():
        before, left = before_seq, limit
        while left:
            page = statement(session, code, before_seq=before, limit=min(_PAGE, left))
            for line in page:
                found.setdefault(line.transfer_seq, (name, line))
            if len(page) < min(_PAGE, left):
                break
            before, left = page[-1].transfer_seq, left - len(page)
    return [found[seq] for seq in sorted(found, reverse=True)[:limit]]


def row(account: str, line: StatementLine) -> tuple[object, ...]:
    """Return a line's values in the order of `COLUMNS`."""
    return (
        line.transfer_seq,
        line.event_seq,
        at(line.created_ns),
        line.kind,
        line.ref,
        line.phase,
        account,
        line.counterpart,
        format_usd(line.amount_nano),
    )
