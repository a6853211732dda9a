"""/accounting/v1/transactions: credits and debits of a user's accounts, newest first."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import StatementLine, statement
from accounting.money import format_usd
from accounting.spending.credit_grants import grants_of
from gateway.api.accounting.dependencies import Facts, Form, managed, sheet, user_of
from gateway.api.authority import AnyCaller, Authority
from gateway.api.fields import OptionalText
from runtime.times import at

router = APIRouter(prefix="/accounting/v1")

PAGE_MAX = 1_000
_GRANTS_MAX = 100
_COLUMNS = ("id", "event", "time", "kind", "ref", "phase", "account", "counterpart", "amount")

Before = Annotated[int | None, Query(ge=1, le=2**63 - 1)]
Limit = Annotated[int, Query(ge=1, le=PAGE_MAX)]


@router.get("/transactions")
async def list_transactions(
    authority: AnyCaller,
    user: OptionalText = None,
    organization: OptionalText = None,
    before: Before = None,
    limit: Limit = 100,
    format: Form = "json",  # noqa: A002 - the query's own name
) -> Response:
    """Show the caller's statement; for admins that of a user or an organization balance. `next` is the `before` of
    the next page.

    A pending line reserves credits without moving them; a void line releases them.
    """
    found = await authority.services.ledger.look(
        lambda session: _lines(session, _accounts(session, authority, user, organization), before, limit + 1)
    )
    lines, after = found[:limit], (found[limit - 1][1].transfer_seq if len(found) > limit else None)
    if format == "csv":
        return sheet("transactions", _COLUMNS, [list(_facts(*line).values()) for line in lines], after)
    return JSONResponse({"data": [_facts(*line) for line in lines], "next": after})


def _accounts(session: Session, authority: Authority, user: str | None, organization: str | None) -> list[str]:
    if organization is not None:
        return [chart.pool_paid(managed(authority, organization))]
    user_id = user_of(authority, user)
    grants = [chart.user_promo(user_id, left.grant.id) for left in grants_of(session, user_id, limit=_GRANTS_MAX)]
    return [chart.user_paid(user_id), chart.user_receivable(user_id), *grants]


def _lines(
    session: Session, accounts: list[str], before: int | None, limit: int
) -> list[tuple[str, StatementLine]]:
    """Return the newest lines of all these accounts; a transfer between two of them is a line of the first."""
    found: dict[int, tuple[str, StatementLine]] = {}
    for account in accounts:
        for line in statement(session, account, before_seq=before, limit=limit):
            found.setdefault(line.transfer_seq, (account, line))
    return [found[seq] for seq in sorted(found, reverse=True)[:limit]]


def _facts(account: str, line: StatementLine) -> Facts:
    facts: dict[str, Any] = {
        "id": line.transfer_seq,
        "event": line.event_seq,
        "time": at(line.created_ns),
        "kind": line.kind,
        "ref": line.ref,
        "phase": line.phase,
        "account": account,
        "counterpart": line.counterpart,
        "amount": format_usd(line.amount_nano),
    }
    return facts
