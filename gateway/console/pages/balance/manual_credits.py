"""Manual credits: given to a user or organization, promotional, or returned to a user; each form once."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from pydantic import AwareDatetime, BaseModel, Field, field_validator

from accounting.money import UsdAmount
from gateway.api.accounting import credit
from gateway.api.accounting.dependencies import Facts
from gateway.api.fields import Text
from gateway.console.access import Operator, Visitor
from gateway.console.forms import Form, read_form
from gateway.console.pages.balance.form_submission import Once, fresh, refuse_weak_key, submit
from gateway.console.pages.balance.whose import PATH
from gateway.console.pages.keys.fields import Plain
from gateway.console.renderer import go, page
from gateway.identity.users import Organization, User
from runtime.errors import RequestInvalid

router = APIRouter(prefix="/credits")

Amount = Annotated[UsdAmount, Field(gt=0)]
_OFFERED_MAX = 500
DAYS_MAX = 3650
"""The same limit as in `millrace credit grant`."""


class GiveForm(BaseModel):
    """`to` is `user:ID` or `organization:ID`, as limits name them."""

    to: Annotated[str, Field(max_length=200, pattern=r"^(user|organization):[^\x00]+$")]
    amount: Amount
    reason: Text
    once: Once


class GrantForm(BaseModel):
    user: Text
    amount: Amount
    days: Annotated[int, Field(ge=1, le=DAYS_MAX)]
    reason: Text
    began: AwareDatetime
    """The time when the form was rendered: submitting twice gives the same expiry."""
    once: Once

    @field_validator("began")
    @classmethod
    def _is_not_ahead(cls, began: datetime) -> datetime:
        # Another gateway with a fast clock may have rendered the form, but never a year ahead.
        if began > datetime.now(UTC) + timedelta(days=1):
            raise ValueError("This form is incomplete. Reload the page.")
        return began


class ReturnForm(BaseModel):
    user: Text
    amount: Amount
    once: Once


@router.get("")
async def ask(visitor: Operator, to: Plain = "") -> Response:
    refuse_weak_key(visitor)
    return await credits_page(visitor, to=to)


@router.post("/give")
async def give(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, GiveForm)

    async def work(fields: GiveForm) -> Facts:
        kind, _, name = fields.to.partition(":")
        new = credit.NewCredit.model_construct(
            user=name if kind == "user" else None,
            organization=name if kind == "organization" else None,
            amount=fields.amount,
            reason=fields.reason,
        )
        return await credit.give(visitor.authority, fields.once, new)

    given, form = await submit(form, work)
    if given is None:
        return await credits_page(visitor, give=form, status=400)
    return go(visitor, place_of(given["to"]), f"{given['to'].partition(':')[2]} received ${given['amount']}.")


@router.post("/grant")
async def grant(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, GrantForm)

    async def work(fields: GrantForm) -> Facts:
        ends = fields.began + timedelta(days=fields.days)
        new = credit.NewPromo.model_construct(
            user=fields.user, amount=fields.amount, expires=ends, scope="cloud", reason=fields.reason
        )
        try:
            return await credit.give_promo(visitor.authority, fields.once, new)
        except RequestInvalid as error:
            if error.param != "expires":
                raise
            raise RequestInvalid(
                "The expiry date is in the past or too far ahead. Reload the page.",
                param="days",
            ) from None

    given, form = await submit(form, work)
    if given is None:
        return await credits_page(visitor, grant=form, status=400)
    return go(visitor, place_of(given["to"]), f"{given['to'].partition(':')[2]} received ${given['amount']}.")


@router.post("/return")
async def give_back(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, ReturnForm)

    async def work(fields: ReturnForm) -> Facts:
        user = await asyncio.to_thread(visitor.directory.users.user, fields.user)
        new = credit.OutOfPool.model_construct(
            organization=user.organization_id, user=user.user_id, amount=fields.amount
        )
        return await credit.return_from_pool(visitor.authority, fields.once, new)

    given, form = await submit(form, work)
    if given is None:
        return await credits_page(visitor, back=form, status=400)
    return go(visitor, place_of(given["to"]), f"${given['amount']} returned to {given['to'].partition(':')[2]}.")


def place_of(target: str) -> str:
    """Return the page that shows the target's credits."""
    kind, _, name = target.partition(":")
    return f"{PATH}?user={quote(name)}" if kind == "user" else f"{PATH}/statement?organization={quote(name)}"


async def credits_page(
    visitor: Visitor,
    *,
    to: str = "",
    give: Form[Any] | None = None,
    grant: Form[Any] | None = None,
    back: Form[Any] | None = None,
    good: Form[Any] | None = None,
    fix: Form[Any] | None = None,
    status: int = 200,
) -> Response:
    """Return the page with all of these forms; rejected ones keep their input."""
    kind, _, name = (give.text("to") if give else to).partition(":")
    users, organizations = await asyncio.to_thread(_known, visitor, name if kind == "user" else "")
    user = name if kind == "user" else None
    return page(
        "balance/credits.html",
        visitor,
        status,
        give=give or fresh(to=to or None),
        grant=grant or fresh(user=user, days=90, began=datetime.now(UTC).isoformat(timespec="seconds")),
        back=back or fresh(user=user),
        good=good or fresh(user=user),
        fix=fix or fresh(debit=f"user:{user}:paid" if user else None),
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
