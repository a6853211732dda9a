"""The routes of /accounting/v1. Routes of payments exist only if Stripe is configured."""

from fastapi import APIRouter

from gateway.admin.payments import payments_of
from gateway.api.accounting import balance, budgets, credit, transactions, usage, usage_refunds

_PAYMENTS = ("payments", "topups", "refunds", "payouts", "sellers", "webhooks")


def accounting_routers(*, has_payments: bool) -> list[APIRouter]:
    """Return the routers in matching order."""
    always = [balance, transactions, usage, budgets, credit, usage_refunds]
    return [*(module.router for module in always), *(_payments() if has_payments else [_no_payments()])]


def _payments() -> list[APIRouter]:
    from gateway.api.accounting import payouts, reconciliation, refunds, topups, webhooks

    return [module.router for module in (reconciliation, topups, refunds, payouts, webhooks)]


def _no_payments() -> APIRouter:
    router = APIRouter(prefix="/accounting/v1")
    for name in _PAYMENTS:
        for path in (f"/{name}", f"/{name}/{{rest:path}}"):
            router.add_api_route(path, _refuse, methods=["GET", "POST", "PUT", "DELETE"])
    return router


async def _refuse() -> None:
    payments_of(None)
