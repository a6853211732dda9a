"""A user's credits: available, held and pending, in charge order; live."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from gateway.admin.balance import user_balance
from gateway.admin.credit import IntoPool, fund_pool
from gateway.app_state import OptionalPayments
from gateway.billing.asked import id_of
from gateway.console.access import Access, Viewer, Visitor
from gateway.console.forms import Form, fresh, submit_once
from gateway.console.live import live_parts
from gateway.console.pages.balance.behind import lines_of
from gateway.console.pages.balance.lines import LineFilter
from gateway.console.pages.balance.whose import PATH, Whose, whose_of
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import go, page
from runtime.errors import NotFound

LINES_SHOWN = 8
_EVERY_S = 5.0
_PARTS = {f"balance-{part}": f"balance/{part}.html" for part in ("stats", "paying", "newest")}
_PENDING_MAX = 100

router = APIRouter(prefix=PATH)


@router.get("")
async def show(visitor: Viewer, access: Access, user: Plain = "", organization: Plain = "") -> Response:
    """Show the visitor's own balance, or for admins a user's; an organization's balance is its statement."""
    whose = await whose_of(visitor, user, organization)
    if whose.pool_id:
        return go(visitor, f"{PATH}/statement{whose.query()}")
    return await _page(visitor, access, whose, fresh())


@router.get("/live")
async def live(visitor: Viewer, access: Access, user: Plain = "") -> Response:
    whose = await whose_of(visitor, user, "")
    key = f"balance:{visitor.caller.user_id}:{visitor.caller.key_id}:{whose.user_id}"
    return await live_parts(visitor, key, _EVERY_S, _PARTS, lambda: _values(visitor, access, whose))


@router.post("/pool")
async def put_into_pool(visitor: Viewer, access: Access) -> Response:
    """Move the visitor's own credits to the organization."""
    caller = visitor.caller
    given, form = await submit_once(
        visitor,
        IntoPool,
        lambda new, once: fund_pool(access, id_of("pool", caller.user_id, once), caller, new.amount),
    )
    if given is None:
        return await _page(visitor, access, await whose_of(visitor, "", ""), form, 400)
    return go(visitor, PATH, f"${given.facts['amount']} moved to your organization.")


async def _page(visitor: Visitor, access: Access, whose: Whose, form: Form[Any], status: int = 200) -> Response:
    values = await _values(visitor, access, whose)
    return page("balance/page.html", visitor, status, form=form, tab="balance", **values)


async def _values(visitor: Visitor, access: Access, whose: Whose) -> dict[str, Any]:
    ledger, payments_service = access.ledger, access.payments_service
    money = await user_balance(visitor.authority, ledger, whose.user_id)
    newest = await ledger.look(
        lambda session: lines_of(session, visitor, whose, LineFilter(moved=True), None, LINES_SHOWN)
    )
    pool_name = ""
    if money.pool:
        pool_name = await asyncio.to_thread(_name_of, visitor, money.organization_id)
    return {
        "money": money,
        "pending_nano": await _pending_nano(payments_service, whose.user_id),
        "frozen_why": ledger.frozen_why(whose.user_id),
        "checkpoint": str(ledger.checkpoint or ""),
        "whose": whose,
        "pool_name": pool_name,
        "newest": newest.lines,
        "has_till": payments_service is not None,
        "sees_pool": visitor.may_administer,
        # Admins of other organizations see their users' credits, but not their payments.
        "sees_topups": whose.is_own or visitor.is_operator,
    }


async def _pending_nano(payments_service: OptionalPayments, user_id: str) -> int:
    """Sum the newest top-ups that Stripe has neither confirmed nor rejected yet, in nano-USD."""
    if payments_service is None:
        return 0
    # Not through the payments facade: balances are shown even while payments are stopped.
    newest = await asyncio.to_thread(payments_service.payments.topups.newest, user_id, None, _PENDING_MAX)
    return sum(topup.credit_nano for topup in newest if topup.status in ("new", "open"))


def _name_of(visitor: Visitor, organization_id: str) -> str:
    try:
        return visitor.directory.users.organization(organization_id).name
    except NotFound:
        return organization_id
