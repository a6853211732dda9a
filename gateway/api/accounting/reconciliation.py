"""/accounting/v1/payments: state, reconciliation with Stripe, and frozen users. For operators."""

import asyncio

from fastapi import APIRouter

from accounting.payments.status_report import status_report
from gateway.api.accounting.dependencies import Facts, Key
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.accounting.payment_dependencies import Paying
from gateway.api.authority import Operator
from gateway.api.fields import Body, Named, Text

router = APIRouter(prefix="/accounting/v1/payments", route_class=KeyedRoute)


class Frozen(Body):
    """`why` null lets the user spend again, unless a dispute is open."""

    why: Text | None


@router.get("")
async def show_payments(payments_service: Paying, operator: Operator) -> Facts:
    """Show the state of payments: mode, queued and failed webhooks, the last reconciliation."""
    return {"mode": payments_service.mode, **await operator.services.ledger.look(status_report)}


@router.post("/reconcile")
async def reconcile(payments_service: Paying, _: Operator, __: Key) -> Facts:
    """Compare Stripe with the ledger now; otherwise this is done once a day."""
    return dict(await payments_service.ask(payments_service.keeper.reconcile)) | {"mode": payments_service.mode}


@router.post("/messages/{message}/retry")
async def retry(payments_service: Paying, operator: Operator, _: Key, message: Named) -> Facts:
    """Retry a failed Stripe webhook. `failures` of the payments has the IDs."""
    await payments_service.ask(payments_service.payments.worker.retry, message)
    facts: Facts = {"id": message, "status": "waiting"}
    await asyncio.to_thread(
        operator.directory.audit.add, operator.actor, "payments.retry", f"message:{message}", facts
    )
    payments_service.keeper.wake()
    return facts


@router.put("/frozen/{user}")
async def freeze(payments_service: Paying, operator: Operator, _: Key, user: Named, body: Frozen) -> Facts:
    """Freeze a user with a reason, or unfreeze with null: a frozen user cannot spend or buy."""
    payer = await asyncio.to_thread(operator.directory.users.ever, user)
    facts: Facts = {"user": payer.user_id, "frozen": body.why}
    await asyncio.to_thread(operator.directory.audit.add, operator.actor, "payments.freeze", f"user:{user}", facts)
    await payments_service.ask(payments_service.payments.payers.freeze, payer.user_id, body.why)
    await payments_service.ask(payments_service.frozen.look)
    # An open dispute freezes the user in any case.
    return facts | {"frozen": payments_service.frozen.why(payer.user_id)}
