"""The marketplace for its operators: sellers, allocations and settlements, disputes, reserves and holds."""

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from gateway.admin.fields import Text
from gateway.app_state import Marketplace
from gateway.console.access import Operator, Visitor
from gateway.console.forms import Form, pressed, read_form, refused, submit
from gateway.console.pages.selling.access import PATH, here
from gateway.console.renderer import go, page
from gateway.parameters import Named, OptionalText
from runtime.errors import NotFound, ServiceError

if TYPE_CHECKING:
    from market.marketplace.marketplace import Marketplace

MARKETPLACE = f"{PATH}/marketplace"

router = APIRouter(prefix=MARKETPLACE)

Here = Annotated["Marketplace", here("Start it with `millrace up --marketplace` to make it one.")]


class Why(BaseModel):
    """The reason, which the seller sees."""

    why: Text


class Forfeit(Why):
    """`name` repeats the seller's name as confirmation, because this cannot be undone."""

    name: Annotated[str, Field(max_length=200)]


@router.get("")
async def show(visitor: Operator, marketplace: Here, seller: OptionalText = None) -> Response:
    return await _page(visitor, marketplace, seller=seller)


@router.post("/sellers/{user}/suspend")
async def suspend(visitor: Operator, marketplace: Here, user: Named) -> Response:
    """Suspend a seller: no new allocations, and pending earnings stay pending until reinstatement."""
    form = await read_form(visitor, Why)
    from gateway.admin import marketplace as admin

    done, form = await submit(form, lambda fields: admin.suspend(marketplace, visitor.authority, user, fields.why))
    if done is None:
        return await _page(visitor, marketplace, form=form, about=f"suspend-{user}", status=400)
    return go(visitor, MARKETPLACE, f"{user} is suspended.")


@router.post("/sellers/{user}/reinstate")
async def reinstate(visitor: Operator, marketplace: Here, user: Named) -> Response:
    await pressed(visitor)
    from gateway.admin import marketplace as admin

    await admin.suspend(marketplace, visitor.authority, user, None)
    return go(visitor, MARKETPLACE, f"{user} is reinstated.")


@router.post("/sellers/{user}/forfeit")
async def forfeit(visitor: Operator, marketplace: Here, user: Named) -> Response:
    """Return the seller's pending earnings to the buyers, permanently."""
    form = await read_form(visitor, Forfeit)
    from gateway.admin import marketplace as admin

    if form.value is not None and form.value.name.strip() != user:
        form = form.refused("The name does not match the seller.", "name")

    done, form = await submit(form, lambda fields: admin.forfeit(marketplace, visitor.authority, user, fields.why))
    if done is None:
        return await _page(visitor, marketplace, form=form, about=f"forfeit-{user}", status=400)
    return go(visitor, MARKETPLACE, f"{done['sales']} sales of {user} were refunded to the buyers.")


@router.post("/disputes/{dispute}/decide")
async def decide(visitor: Operator, marketplace: Here, dispute: Named) -> Response:
    """Retry deciding an overdue dispute without an answer; the rule decides, not the operator.

    Raises NotFound if the dispute is not overdue.
    """
    await pressed(visitor)
    from gateway.console.pages.selling.desks import dispute_views

    overdue = {
        each.row.id: each.row for each in await marketplace.ask(dispute_views, marketplace) if each.is_overdue
    }
    if dispute not in overdue:
        raise NotFound("No overdue dispute with this ID. It is decided, or an answer is still pending.")
    try:
        row = await marketplace.ask(marketplace.disputes.decide, dispute)
        if row.status == "decided":
            await marketplace.ask(marketplace.settlements.submit, row.allocation_digest, ())
    except ServiceError as error:
        form: Form[Why] = refused(Form(), error)
        return await _page(visitor, marketplace, form=form, about="disputes", status=409)
    return go(visitor, f"{MARKETPLACE}#disputes", f"The dispute is {row.status}: {row.reason or 'no change'}.")


async def _page(
    visitor: Visitor,
    marketplace: Marketplace,
    *,
    seller: str | None = None,
    form: Form[Any] | None = None,
    about: str = "",
    status: int = 200,
) -> Response:
    values = await marketplace.ask(_look, marketplace, seller)
    return page(
        "selling/marketplace.html",
        visitor,
        status,
        tab="marketplace",
        form=form or Form(),
        about=about,
        seller=seller,
        terms=marketplace.context.terms,
        speaker=marketplace.context.speaker.id,
        **values,
    )


def _look(marketplace: Marketplace, seller: str | None) -> dict[str, Any]:
    from gateway.console.pages.selling.desks import dispute_views, trades
    from gateway.console.pages.selling.maturity import day_written
    from gateway.console.pages.selling.sellers_here import reserves_of, sellers_of, sums, withheld_of

    return {
        "now_ns": marketplace.context.clock_ns(),
        "sellers": sellers_of(marketplace, seller),
        "day_written": day_written,
        "trades": trades(marketplace, seller),
        "disputes": dispute_views(marketplace),
        "sums": sums(marketplace),
        "withheld": withheld_of(marketplace),
        "reserves": reserves_of(marketplace),
    }
