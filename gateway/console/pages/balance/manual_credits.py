"""Manual entries of operators, each form once: credits given, promotional or returned, goodwill, adjustments."""

import asyncio
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Response
from pydantic import Field, model_validator

from gateway.admin import credit
from gateway.admin.credit import FromOwnPool, NewCredit, PromoForDays
from gateway.admin.ledger_access import Booked
from gateway.admin.manual_entries import Correction, Goodwill, correct, give_goodwill
from gateway.billing.asked import id_of
from gateway.console.access import Operator, Visitor, refuse_weak_key
from gateway.console.forms import Form, Once, fresh, read_form, submit, submit_form
from gateway.console.pages.balance.whose import PATH
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import go, page
from gateway.identity.users import Organization, User

router = APIRouter(prefix="/credits")

_OFFERED_MAX = 500


class GiveForm(NewCredit):
    """`to` is `user:ID` or `organization:ID`, as limits name them."""

    to: Annotated[str, Field(max_length=200, pattern=r"^(user|organization):[^\x00]+$")]
    once: Once

    @model_validator(mode="before")
    @classmethod
    def _read_to(cls, given: dict[str, Any]) -> dict[str, Any]:
        kind, _, name = given.get("to", "").partition(":")
        return given | {kind: name} if kind in ("user", "organization") and name else given


class GrantForm(PromoForDays):
    once: Once


class ReturnForm(FromOwnPool):
    once: Once


@router.get("")
async def ask(visitor: Operator, to: Plain = "") -> Response:
    refuse_weak_key(visitor)
    return await credits_page(visitor, to=to)


@router.post("/give")
async def give(visitor: Operator) -> Response:
    given, form = await submit_form(
        visitor,
        GiveForm,
        lambda fields: credit.give(visitor.authority.ledger, _id("credit", visitor, fields.once), fields),
    )
    return _received(visitor, given) if given else await credits_page(visitor, give=form, status=400)


@router.post("/grant")
async def grant(visitor: Operator) -> Response:
    form = await read_form(visitor, GrantForm)
    given, form = await submit(
        form,
        lambda fields: credit.give_promo(visitor.authority.ledger, _id("promo", visitor, fields.once), fields),
    )
    return _received(visitor, given) if given else await credits_page(visitor, grant=form, status=400)


@router.post("/return")
async def give_back(visitor: Operator) -> Response:
    form = await read_form(visitor, ReturnForm)
    given, form = await submit(
        form,
        lambda fields: credit.return_from_pool(
            visitor.authority.ledger, _id("pool-return", visitor, fields.once), fields
        ),
    )
    if given is None:
        return await credits_page(visitor, back=form, status=400)
    to, amount = given.facts["to"], given.facts["amount"]
    return go(visitor, place_of(to), f"${amount} returned to {to.partition(':')[2]}.")


def _id(what: str, visitor: Visitor, once: str) -> str:
    return id_of(what, visitor.actor.name, once)


def _received(visitor: Visitor, given: Booked) -> Response:
    to, amount = given.facts["to"], given.facts["amount"]
    return go(visitor, place_of(to), f"{to.partition(':')[2]} received ${amount}.")


def place_of(target: str) -> str:
    """Return the page that shows the target's credits."""
    kind, _, name = target.partition(":")
    return f"{PATH}?user={quote(name)}" if kind == "user" else f"{PATH}/statement?organization={quote(name)}"


async def credits_page(visitor: Visitor, *, to: str = "", status: int = 200, **forms: Form[Any]) -> Response:
    """Return the page with its five forms; rejected ones, given by their name, keep their input."""
    kind, _, name = (forms["give"].text("to") if "give" in forms else to).partition(":")
    users, organizations = await asyncio.to_thread(_known, visitor, name if kind == "user" else "")
    user = name if kind == "user" else None
    return page(
        "balance/credits.html",
        visitor,
        status,
        **{
            "give": fresh(to=to or None),
            "grant": fresh(user=user, days=90),
            "back": fresh(user=user),
            "good": fresh(user=user),
            "fix": fresh(debit=f"user:{user}:paid" if user else None),
        }
        | forms,
        users=users,
        organizations=organizations,
        has_more=len(users) >= _OFFERED_MAX,
        tab="users",
    )


def _known(visitor: Visitor, chosen: str) -> tuple[list[User], list[Organization]]:
    """Return the targets offered in lists: of very many users a part, and the user already chosen."""
    users = visitor.directory.users
    known = users.users()
    offered = known[:_OFFERED_MAX] + [user for user in known[_OFFERED_MAX:] if user.user_id == chosen]
    return offered, users.organizations()


class GoodwillForm(Goodwill):
    once: Once


class CorrectForm(Correction):
    once: Once


@router.post("/goodwill")
async def make_good(visitor: Operator) -> Response:
    """Give credits that do not expire, paid by this gateway."""
    form = await read_form(visitor, GoodwillForm)
    actor = visitor.actor.name
    given, form = await submit(
        form,
        lambda new: give_goodwill(visitor.authority.ledger, id_of("goodwill", actor, new.once), new),
    )
    if given is None:
        return await credits_page(visitor, good=form, status=400)
    return go(visitor, f"{PATH}/users", f"{form.text('user')} received ${form.text('amount')}.")


@router.post("/correct")
async def put_right(visitor: Operator) -> Response:
    """Post a separate entry; existing entries are never changed."""
    booked, form = await submit_form(
        visitor, CorrectForm, lambda fields: correct(visitor.authority.ledger, fields)
    )
    if booked is None:
        return await credits_page(visitor, fix=form, status=400)
    what = "was posted before" if booked.posted.replayed else "posted"
    return go(visitor, f"{PATH}/credits", f"{form.text('incident')} {what} (entry {booked.posted.event_seq}).")
