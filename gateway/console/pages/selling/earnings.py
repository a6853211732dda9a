"""Earnings: pending, available, paid out; their dates; the statement; the payout account; payouts."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from accounting.money import UsdAmount, format_usd
from accounting.payments.terms import NANO_PER_CENT
from gateway.admin.statement import COLUMNS, row
from gateway.app_state import Marketplace, OptionalMarketplace
from gateway.console.access import Visitor
from gateway.console.forms import Form, NoFields, fresh, submit_once
from gateway.console.pages.selling.access import PATH, Seller, Sources, here
from gateway.console.pages.selling.accounts import (
    Account,
    Bounds,
    Conditions,
    Connect,
    PayoutLine,
    Standing,
    account_now,
)
from gateway.console.renderer import go, page
from gateway.errors import FeatureUnsupported, RoleForbids
from gateway.parameters import sheet
from runtime.errors import NotFound, ServiceError

if TYPE_CHECKING:
    from gateway.console.pages.selling.maturity import Money

EARNINGS = f"{PATH}/earnings"
_LINES_MAX = 1_000

router = APIRouter(prefix=EARNINGS)

Here = Annotated["Marketplace", here("Download the statement from the marketplace where you sell.")]

Before = Annotated[int | None, Query(ge=1, le=2**63 - 1)]


class NewPayout(BaseModel):
    amount: UsdAmount


@dataclass(frozen=True, slots=True)
class Sheet:
    """The page's data; None if the marketplace did not provide it, with the reason in `problem`."""

    conditions: Conditions | None = None
    standing: Standing | None = None
    connect: Connect | None = None
    payouts: tuple[PayoutLine, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    money: "Money | None" = None
    problem: str = ""
    takes_payments: bool = False


@router.get("")
async def show(visitor: Seller, sources: Sources) -> Response:
    return await _page(visitor, sources)


@router.post("/payout")
async def pay_out(visitor: Seller, sources: Sources) -> Response:
    """Pay out part of the available earnings."""
    account = await _account(visitor, sources)
    made, form = await submit_once(visitor, NewPayout, lambda fields, once: account.pay_out(fields.amount, once))
    if made is None:
        return await _page(visitor, sources, form, 400)
    return go(visitor, EARNINGS, f"Payout of ${format_usd(made.amount_nano)}: {made.status}.")


@router.post("/onboard")
async def onboard(visitor: Seller, sources: Sources) -> Response:
    """Open a Stripe page where the seller enters their identity and bank account."""
    account = await _account(visitor, sources)
    url, form = await submit_once(visitor, NoFields, lambda _, once: account.onboard(once))
    if url is None:
        return await _page(visitor, sources, link_form=form, status=400)
    return await _page(visitor, sources, link=url)


@router.get("/statement.csv")
async def statement_csv(visitor: Seller, marketplace: Here, before: Before = None) -> Response:
    """Download all entries of the visitor's earnings here, newest first, a thousand lines at a time.

    Raises NotFound if this gateway is not a marketplace.
    """
    from gateway.console.pages.selling.maturity import newest_lines

    user_id = visitor.caller.user_id

    def look() -> list[tuple[object, ...]]:
        with marketplace.context.read() as session:
            return [row(*line) for line in newest_lines(session, user_id, before, _LINES_MAX)]

    rows = await marketplace.ask(look)
    after = int(str(rows[-1][0])) if len(rows) == _LINES_MAX else None
    return sheet("earnings", COLUMNS, rows, after)


async def _account(visitor: Visitor, sources: Sources) -> Account:
    """Return the account. Raises NotFound if there is no marketplace, RoleForbids."""
    account = await account_now(visitor, sources)
    if account is None:
        raise NotFound("No marketplace set up. Enter one in “List idle capacity”.")
    if not account.is_here and not visitor.may_administer:
        # The remote account uses the machine's own key, which an application's key must not stand in for.
        raise RoleForbids("This key has no admin access. The account belongs to this machine.")
    return account


async def _sheet(visitor: Visitor, account: Account, marketplace: OptionalMarketplace) -> Sheet:
    """Read what the marketplace provides; if it is unreachable, report one problem, not one per part."""
    try:
        conditions, standing = await account.conditions(), await account.standing()
    except ServiceError as error:
        return Sheet(problem=error.message)
    money = await _money(marketplace, visitor.caller.user_id) if account.is_here else None
    found = Sheet(conditions, standing, money=money)
    try:
        connect, payouts, bounds = await account.connect(), await account.payouts(), await account.bounds()
    except FeatureUnsupported:
        return found
    except ServiceError as error:
        return replace(found, takes_payments=True, problem=error.message)
    return Sheet(conditions, standing, connect, payouts, bounds, money, takes_payments=True)


async def _money(marketplace: OptionalMarketplace, user_id: str) -> "Money | None":
    """Return pending earnings and the newest entries if this gateway is the marketplace."""
    if marketplace is None:
        return None
    from gateway.console.pages.selling.maturity import money_of

    return await marketplace.ask(money_of, marketplace, user_id)


async def _page(
    visitor: Visitor,
    sources: Sources,
    form: Form[NewPayout] | None = None,
    status: int = 200,
    *,
    link_form: Form[NoFields] | None = None,
    link: str = "",
) -> Response:
    account = await account_now(visitor, sources)
    found = await _sheet(visitor, account, sources.marketplace) if account else Sheet()
    payable_nano = found.standing.earned.payable if found.standing else 0
    return page(
        "selling/earnings.html",
        visitor,
        status,
        tab="earnings",
        account=account,
        form=form or fresh(),
        link_form=link_form or fresh(),
        link=link,
        sheet=found,
        payable_text=format_usd(payable_nano // NANO_PER_CENT * NANO_PER_CENT),
    )
