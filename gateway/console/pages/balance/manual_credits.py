"""Manual entries of operators, each form once: credits given, promotional or returned, goodwill, adjustments."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, model_validator

from gateway.admin import credit
from gateway.admin.credit import FromOwnPool, NewCredit, PromoForDays
from gateway.admin.ledger_access import Booked, LedgerAccess
from gateway.admin.manual_entries import Correction, Goodwill, correct, give_goodwill
from gateway.billing.asked import id_of
from gateway.console.access import Access, Operator, Visitor, refuse_weak_key
from gateway.console.forms import Form, fresh, submit_once
from gateway.console.pages.balance.whose import PATH
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import go, page
from gateway.identity.users import Organization, User

router = APIRouter(prefix="/credits")

_OFFERED_MAX = 500

M = TypeVar("M", bound=BaseModel)


class GiveForm(NewCredit):
    """`to` is `user:ID` or `organization:ID`, as limits name them."""

    to: Annotated[str, Field(max_length=200, pattern=r"^(user|organization):[^\x00]+$")]

    @model_validator(mode="before")
    @classmethod
    def _read_to(cls, given: dict[str, Any]) -> dict[str, Any]:
        kind, _, name = given.get("to", "").partition(":")
        return given | {kind: name} if kind in ("user", "organization") and name else given


@router.get("")
async def ask(visitor: Operator, to: Plain = "") -> Response:
    refuse_weak_key(visitor)
    return await credits_page(visitor, to)


@router.post("/give")
async def give(visitor: Operator, access: Access) -> Response:
    return await _give(visitor, access, "give", GiveForm, "credit", credit.give)


@router.post("/grant")
async def grant(visitor: Operator, access: Access) -> Response:
    return await _give(visitor, access, "grant", PromoForDays, "promo", credit.give_promo)


@router.post("/return")
async def give_back(visitor: Operator, access: Access) -> Response:
    return await _give(visitor, access, "back", FromOwnPool, "pool-return", credit.return_from_pool, "returned to")


async def _give(
    visitor: Visitor,
    access: LedgerAccess,
    name: str,
    model: type[M],
    what: str,
    work: Callable[[LedgerAccess, str, M], Awaitable[Booked]],
    verb: str = "",
) -> Response:
    """Post the entry of the form `name`, and show the credits of its user or organization."""
    actor = visitor.actor.name
    given, form = await submit_once(visitor, model, lambda new, once: work(access, id_of(what, actor, once), new))
    if given is None:
        return await credits_page(visitor, "", **{name: form})
    to, amount = given.facts["to"], f"${given.facts['amount']}"
    who = to.partition(":")[2]
    return go(visitor, place_of(to), f"{amount} {verb} {who}." if verb else f"{who} received {amount}.")


def place_of(target: str) -> str:
    """Return the page that shows the target's credits."""
    kind, _, name = target.partition(":")
    return f"{PATH}?user={quote(name)}" if kind == "user" else f"{PATH}/statement?organization={quote(name)}"


async def credits_page(visitor: Visitor, to: str = "", **rejected: Form[Any]) -> Response:
    """Return the page with its five forms; rejected ones, given by their name, keep their input."""
    kind, _, name = (rejected["give"].text("to") if "give" in rejected else to).partition(":")
    users, organizations = await asyncio.to_thread(_known, visitor, name if kind == "user" else "")
    user = name if kind == "user" else None
    return page(
        "balance/credits.html",
        visitor,
        400 if rejected else 200,
        **{
            "give": fresh(to=to or None),
            "grant": fresh(user=user, days=90),
            "back": fresh(user=user),
            "good": fresh(user=user),
            "fix": fresh(debit=f"user:{user}:paid" if user else None),
        }
        | rejected,
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


@router.post("/goodwill")
async def make_good(visitor: Operator, access: Access) -> Response:
    """Give credits that do not expire, paid by this gateway."""
    actor = visitor.actor.name
    given, form = await submit_once(
        visitor, Goodwill, lambda new, once: give_goodwill(access, id_of("goodwill", actor, once), new)
    )
    if given is None:
        return await credits_page(visitor, good=form)
    return go(visitor, f"{PATH}/users", f"{form.text('user')} received ${form.text('amount')}.")


@router.post("/correct")
async def put_right(visitor: Operator, access: Access) -> Response:
    """Post a separate entry; existing entries are never changed."""
    booked, form = await submit_once(visitor, Correction, lambda fields, _: correct(access, fields))
    if booked is None:
        return await credits_page(visitor, fix=form)
    what = "was posted before" if booked.posted.replayed else "posted"
    return go(visitor, f"{PATH}/credits", f"{form.text('incident')} {what} (entry {booked.posted.event_seq}).")
