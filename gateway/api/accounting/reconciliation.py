"""/accounting/v1/payments: state, reconciliation with Stripe, and frozen users. For operators."""

from fastapi import APIRouter

from gateway.admin import payments
from gateway.admin.fields import Facts
from gateway.admin.payments import Frozen
from gateway.api.accounting.dependencies import Key, Paying
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.authority import Operator
from gateway.app_state import Ledger
from gateway.parameters import Named

router = APIRouter(prefix="/accounting/v1/payments", route_class=KeyedRoute)


@router.get("")
async def show_payments(payments_service: Paying, _: Operator, ledger: Ledger) -> Facts:
    """Show the state of payments: mode, queued and failed webhooks, the last reconciliation."""
    return await payments.show_payments(payments_service, ledger)


@router.post("/reconcile")
async def reconcile(payments_service: Paying, _: Operator, __: Key) -> Facts:
    """Compare Stripe with the ledger now; otherwise this is done once a day."""
    return dict(await payments_service.ask(payments_service.keeper.reconcile)) | {"mode": payments_service.mode}


@router.post("/messages/{message}/retry")
async def retry(payments_service: Paying, operator: Operator, _: Key, message: Named) -> Facts:
    """Retry a failed Stripe webhook. `failures` of the payments has the IDs."""
    return await payments.retry_now(payments_service, operator, message)


@router.put("/frozen/{user}")
async def freeze(payments_service: Paying, operator: Operator, _: Key, user: Named, body: Frozen) -> Facts:
    """Freeze a user with a reason, or unfreeze with null: a frozen user cannot spend or buy."""
    return await payments.freeze(payments_service, operator, user, body.why)
