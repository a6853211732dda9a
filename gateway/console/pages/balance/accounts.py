"""A user's credits: available, held and pending, in charge order; live."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from accounting.money import parse_usd
from gateway.api.accounting.balance import show_balance
from gateway.api.accounting.credit import IntoPool, fund_pool
from gateway.api.accounting.dependencies import Facts
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import Form, read_form
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.balance.behind import lines_of
from gateway.console.pages.balance.form_submission import Once, fresh, submit
from gateway.console.pages.balance.lines import LineFilter
from gateway.console.pages.balance.whose import PATH, Whose, whose_of
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import go, page
from runtime.errors import NotFound

LINES_SHOWN = 8
_EVERY_S = 5.0
_PENDING_MAX = 100

router = APIRouter(prefix=PATH)


class IntoPoolForm(IntoPool):
    once: Once


@dataclass(frozen=True, slots=True)
class AccountPart:
    """Credits that pay for requests, in nano-USD; `kind` is promo, pool or paid; only promo has `ends_ns`."""

    kind: str
    id: str
    account: str
    reason: str
    ends_ns: int | None
    credits_nano: int
    held_nano: int

    @property
    def available_nano(self) -> int:
        return self.credits_nano - self.held_nano


@dataclass(frozen=True, slots=True)
class Money:
    """A user's credits. `parts` are in charge order; `pending_nano` is bought but not confirmed."""

    available_nano: int
    held_nano: int
    owed_nano: int
    pending_nano: int
    parts: tuple[AccountPart, ...]
    organization: str
    frozen_why: str | None
    checkpoint: str | None

    def of(self, kind: str) -> int:
        """Return the available credits of one kind, in nano-USD."""
        return sum(part.available_nano for part in self.parts if part.kind == kind)


@router.get("")
async def show(visitor: Viewer, user: Plain = "", organization: Plain = "") -> Response:
    """Show the visitor's own balance, or for admins a user's; an organization's balance is its statement."""
    whose = await whose_of(visitor, user, organization)
    if whose.pool_id:
        return go(visitor, f"{PATH}/statement{whose.query()}")
    return await _page(visitor, whose, fresh())


@router.get("/live")
async def live(request: Request, visitor: Viewer, user: Plain = "") -> Response:
    whose = await whose_of(visitor, user, "")

    async def render() -> list[Region | Points]:
        values = await _values(visitor, whose)
        return [
            Region(f"balance-{part}", f"balance/{part}.html", values) for part in ("stats", "paying", "newest")
        ]

    key = f"balance:{visitor.caller.user_id}:{visitor.caller.key_id}:{whose.user_id}"
    return await live_response(request, visitor, LivePage(key, render, _EVERY_S))


@router.post("/pool")
async def put_into_pool(request: Request, visitor: Viewer) -> Response:
    """Move the visitor's own credits to the organization."""
    form = await read_form(request, visitor, IntoPoolForm)
    given, form = await submit(
        form, lambda fields: fund_pool(visitor.authority, visitor.caller, fields.once, fields)
    )
    if given is None:
        return await _page(visitor, await whose_of(visitor, "", ""), form, 400)
    return go(visitor, PATH, f"${given['amount']} moved to your organization.")


async def _page(visitor: Visitor, whose: Whose, form: Form[Any], status: int = 200) -> Response:
    values = await _values(visitor, whose)
    return page("balance/page.html", visitor, status, form=form, tab="balance", **values)


async def _values(visitor: Visitor, whose: Whose) -> dict[str, Any]:
    facts = await show_balance(visitor.authority, user=whose.user_id)
    newest = await visitor.services.ledger.look(
        lambda session: lines_of(session, visitor, whose, LineFilter(moves_only=True), None, LINES_SHOWN)
    )
    why = visitor.services.ledger.frozen_why(whose.user_id)
    money = money_of(facts, await _pending_nano(visitor, whose.user_id), why)
    pool_name = ""
    if any(part.kind == "pool" for part in money.parts):
        pool_name = await asyncio.to_thread(_name_of, visitor, money.organization)
    return {
        "money": money,
        "whose": whose,
        "pool_name": pool_name,
        "newest": newest.lines,
        "has_till": visitor.services.payments_service is not None,
        "sees_pool": visitor.may_administer,
        # Admins of other organizations see their users' credits, but not their payments.
        "sees_topups": whose.is_own or visitor.is_operator,
    }


def money_of(facts: Facts, pending_nano: int, frozen_why: str | None) -> Money:
    """Convert the accounting API's facts. Charge order: promotional credits, the organization's, then own."""
    parts = [
        _part(
            "promo",
            grant,
            grant["id"],
            f"user:{facts['user']}:promo:{grant['id']}",
            grant["reason"],
            grant["expires"],
        )
        for grant in facts["promo"]
    ]
    if facts["pool"] is not None:
        pool_id = facts["pool"]["organization"]
        parts.append(_part("pool", facts["pool"], pool_id, f"pool:{pool_id}:paid"))
    parts.append(_part("paid", facts["paid"], facts["user"], f"user:{facts['user']}:paid"))
    return Money(
        parse_usd(facts["available"]),
        parse_usd(facts["held"]),
        parse_usd(facts["owed"]),
        pending_nano,
        tuple(parts),
        facts["organization"],
        frozen_why,
        facts["ledger_checkpoint"],
    )


def _part(kind: str, amounts: Facts, id: str, account: str, reason: str = "", ends: str = "") -> AccountPart:  # noqa: A002
    ends_ns = int(datetime.fromisoformat(ends).timestamp() * 10**9) if ends else None
    return AccountPart(
        kind, id, account, reason, ends_ns, parse_usd(amounts["credits"]), parse_usd(amounts["held"])
    )


async def _pending_nano(visitor: Visitor, user_id: str) -> int:
    """Sum the newest top-ups that Stripe has neither confirmed nor rejected yet, in nano-USD."""
    payments_service = visitor.services.payments_service
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
