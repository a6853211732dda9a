"""State of payments for operators: queued or failed webhooks, Stripe against the ledger, frozen users."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from accounting.chart import SUSPENSE
from accounting.ledger.balances import balance
from gateway.admin import payments
from gateway.admin.fields import Facts, Text
from gateway.admin.payments import payments_of
from gateway.console.access import Operator, Visitor, refuse_weak_key
from gateway.console.forms import Form, NoFields, fresh, pressed, submit_once
from gateway.console.pages.balance.whose import PATH
from gateway.console.renderer import go, page
from gateway.identity.users import User

_PAYMENTS = f"{PATH}/payments"

router = APIRouter(prefix="/payments")

Message = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


class FreezeForm(BaseModel):
    user: Text
    why: Text


class ThawForm(BaseModel):
    user: Text
    why: None = None


@router.get("")
async def show(visitor: Operator) -> Response:
    refuse_weak_key(visitor)
    return await _page(visitor, fresh())


@router.post("/reconcile")
async def reconcile(visitor: Operator) -> Response:
    """Compare Stripe with the ledger now."""
    payments_service = payments_of(visitor.services)
    found, form = await submit_once(
        visitor, NoFields, lambda *_: payments_service.ask(payments_service.keeper.reconcile)
    )
    if found is None:
        return await _page(visitor, form, 400)
    count = found["unmatched_count"]
    result = "all match" if not count else f"{count} do not match"
    return go(visitor, _PAYMENTS, f"{found['compared']} transactions compared: {result}.")


@router.post("/messages/{message}/retry")
async def retry(visitor: Operator, message: Message) -> Response:
    """Retry a Stripe webhook that failed too often. Raises NotFound."""
    payments_service = payments_of(visitor.services)
    await pressed(visitor)
    await payments.retry_now(payments_service, visitor.authority, message)
    return go(visitor, _PAYMENTS, f"{message} will be retried.")


@router.post("/freeze")
async def freeze(visitor: Operator) -> Response:
    """Stop a user from spending and buying until an admin unfreezes them."""
    done, form = await _freeze(visitor, FreezeForm)
    if done is None:
        return await _page(visitor, form, 400)
    return go(visitor, f"{_PAYMENTS}#frozen", f"{done['user']} is frozen.")


@router.post("/thaw")
async def thaw(visitor: Operator) -> Response:
    """Let a user spend again, unless a dispute is open."""
    done, form = await _freeze(visitor, ThawForm)
    if done is None:
        return await _page(visitor, form, 400)
    still = done["frozen"]
    return go(
        visitor,
        f"{_PAYMENTS}#frozen",
        f"{done['user']} stays frozen: {still}." if still else f"{done['user']} can spend again.",
    )


async def _freeze(visitor: Visitor, model: type[FreezeForm] | type[ThawForm]) -> tuple[Facts | None, Form[Any]]:
    payments_service = payments_of(visitor.services)
    return await submit_once(
        visitor,
        model,
        lambda fields, _: payments.freeze(payments_service, visitor.authority, fields.user, fields.why),
    )


async def _page(visitor: Visitor, form: Form[Any], status: int = 200) -> Response:
    payments_service = visitor.services.payments_service
    if payments_service is None:
        return page("balance/no_payments.html", visitor, tab="payments")
    facts = await payments.show_payments(payments_service, visitor.authority)
    suspense = await visitor.services.ledger.look(lambda session: balance(session, SUSPENSE))
    users: list[User] = await asyncio.to_thread(visitor.directory.users.users)
    return page(
        "balance/payments.html",
        visitor,
        status,
        facts=facts,
        note=facts["reconciliation"] or {},
        suspense_nano=suspense.posted_nano,
        wrong=str(payments_service.keeper.wrong or ""),
        is_live=payments_service.is_live,
        users=users,
        form=form,
        button=fresh(),
        tab="payments",
    )
