"""State of payments for operators: queued or failed webhooks, Stripe against the ledger, frozen users."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel

from accounting.chart import SUSPENSE
from accounting.ledger.balances import balance
from gateway.admin import payments
from gateway.admin.fields import Facts, Text
from gateway.app_state import Payments
from gateway.console.access import Access, Operator, Visitor, refuse_weak_key
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
async def show(visitor: Operator, access: Access) -> Response:
    refuse_weak_key(visitor)
    return await _page(visitor, access, fresh())


@router.post("/reconcile")
async def reconcile(visitor: Operator, payments_service: Payments, access: Access) -> Response:
    """Compare Stripe with the ledger now."""
    found, form = await submit_once(
        visitor, NoFields, lambda *_: payments_service.ask(payments_service.keeper.reconcile)
    )
    if found is None:
        return await _page(visitor, access, form, 400)
    count = found["unmatched_count"]
    result = "all match" if not count else f"{count} do not match"
    return go(visitor, _PAYMENTS, f"{found['compared']} transactions compared: {result}.")


@router.post("/messages/{message}/retry")
async def retry(visitor: Operator, payments_service: Payments, message: Message) -> Response:
    """Retry a Stripe webhook that failed too often. Raises NotFound."""
    await pressed(visitor)
    await payments.retry_now(payments_service, visitor.authority, message)
    return go(visitor, _PAYMENTS, f"{message} will be retried.")


@router.post("/freeze")
async def freeze(visitor: Operator, payments_service: Payments, access: Access) -> Response:
    """Stop a user from spending and buying until an admin unfreezes them."""
    done, form = await _freeze(visitor, payments_service, FreezeForm)
    if done is None:
        return await _page(visitor, access, form, 400)
    return go(visitor, f"{_PAYMENTS}#frozen", f"{done['user']} is frozen.")


@router.post("/thaw")
async def thaw(visitor: Operator, payments_service: Payments, access: Access) -> Response:
    """Let a user spend again, unless a dispute is open."""
    done, form = await _freeze(visitor, payments_service, ThawForm)
    if done is None:
        return await _page(visitor, access, form, 400)
    still = done["frozen"]
    return go(
        visitor,
        f"{_PAYMENTS}#frozen",
        f"{done['user']} stays frozen: {still}." if still else f"{done['user']} can spend again.",
    )


async def _freeze(
    visitor: Visitor, payments_service: Payments, model: type[FreezeForm] | type[ThawForm]
) -> tuple[Facts | None, Form[Any]]:
    return await submit_once(
        visitor,
        model,
        lambda fields, _: payments.freeze(payments_service, visitor.authority, fields.user, fields.why),
    )


async def _page(visitor: Visitor, access: Access, form: Form[Any], status: int = 200) -> Response:
    ledger, payments_service = access.ledger, access.payments_service
    if payments_service is None:
        return page("balance/no_payments.html", visitor, tab="payments")
    facts = await payments.show_payments(payments_service, ledger)
    suspense = await ledger.look(lambda session: balance(session, SUSPENSE))
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
