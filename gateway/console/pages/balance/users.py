"""Credits of all users whom the visitor administers, searchable by name; and their organizations' balances."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import available, balance
from accounting.rules.held import Payer
from accounting.spending.funding_sources import fundings_of
from gateway.admin.users import list_organizations
from gateway.app_state import Ledger
from gateway.console.access import Manager, Visitor, refuse_weak_key
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import page
from gateway.identity.users import User
from gateway.pages import CURSOR_MAX, Cursor, page_of

PAGE_ROWS = 50
_POOLS_MAX = 200

router = APIRouter(prefix="/users")

After = Annotated[str, Query(max_length=CURSOR_MAX, description="The cursor from the previous page.")]


@dataclass(frozen=True, slots=True)
class UserMoney:
    """A user's credits in nano-USD: own, promotional, and owed."""

    user: User
    paid_nano: int
    given_nano: int
    owed_nano: int
    frozen_why: str | None


@router.get("")
async def show(visitor: Manager, ledger: Ledger, text: Plain = "", after: After = "") -> Response:
    """Show the list. Raises RequestInvalid, and RoleForbids for visitors who may not see other users' money."""
    refuse_weak_key(visitor)
    text, cursor = text.strip(), Cursor.parse(after, "after") if after else None
    values = await asyncio.to_thread(_look, visitor, ledger, text, cursor)
    return page("balance/users.html", visitor, text=text, is_first=cursor is None, tab="users", **values)


def _look(visitor: Visitor, ledger: Ledger, text: str, after: Cursor | None) -> dict[str, Any]:
    within = visitor.authority.within(None)
    users = visitor.directory.users
    shown, place = page_of(users.users(within, text, after=after, limit=PAGE_ROWS + 1), PAGE_ROWS)
    pools = list_organizations(visitor.authority)
    with visitor.directory.read() as session:
        return {
            "users": _money_of(session, ledger.frozen_why, shown),
            "found": users.count(within, text),
            "next": place,
            "pools": [
                (pool, balance(session, chart.pool_paid(pool.organization_id))) for pool in pools[:_POOLS_MAX]
            ],
        }


def _money_of(session: Session, frozen_why: Callable[[str], str | None], users: Sequence[User]) -> list[UserMoney]:
    """Read the users' credits with three database queries, whatever the number of users."""
    payers = {user.user_id: Payer(user.user_id, user.organization_id) for user in users}
    funding_lookup = fundings_of(session, list(payers.values()), time.time_ns())
    owed = {user.user_id: chart.user_receivable(user.user_id) for user in users}
    codes = {source.account for funding in funding_lookup.values() for source in funding} | set(owed.values())
    free = available(session, sorted(codes))
    return [
        UserMoney(
            user,
            free.get(chart.user_paid(user.user_id), 0),
            sum(
                free[source.account]
                for source in funding_lookup[payers[user.user_id]]
                if ":promo:" in source.account
            ),
            free[owed[user.user_id]],
            frozen_why(user.user_id),
        )
        for user in users
    ]
