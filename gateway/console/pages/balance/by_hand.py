"""Manual entries by operators, each posted once: goodwill paid by this gateway, and adjustments."""

from fastapi import APIRouter, Request, Response

from gateway.admin.manual_entries import Correction, Goodwill, correct, give_goodwill
from gateway.billing.asked import id_of
from gateway.console.access import Operator
from gateway.console.forms import Once, read_form, submit
from gateway.console.pages.balance.manual_credits import credits_page
from gateway.console.pages.balance.whose import PATH
from gateway.console.renderer import go

router = APIRouter(prefix="/credits")


class GoodwillForm(Goodwill):
    once: Once


class CorrectForm(Correction):
    once: Once


@router.post("/goodwill")
async def make_good(request: Request, visitor: Operator) -> Response:
    """Give credits that do not expire, paid by this gateway."""
    form = await read_form(request, visitor, GoodwillForm)
    actor = visitor.actor.name
    given, form = await submit(
        form,
        lambda new: give_goodwill(visitor.authority.ledger, id_of("goodwill", actor, new.once), new),
    )
    if given is None:
        return await credits_page(visitor, good=form, status=400)
    return go(visitor, f"{PATH}/users", f"{form.text('user')} received ${form.text('amount')}.")


@router.post("/correct")
async def put_right(request: Request, visitor: Operator) -> Response:
    """Post a separate entry; existing entries are never changed."""
    form = await read_form(request, visitor, CorrectForm)
    booked, form = await submit(form, lambda fields: correct(visitor.authority.ledger, fields))
    if booked is None:
        return await credits_page(visitor, fix=form, status=400)
    what = "was posted before" if booked.posted.replayed else "posted"
    return go(visitor, f"{PATH}/credits", f"{form.text('incident')} {what} (entry {booked.posted.event_seq}).")
