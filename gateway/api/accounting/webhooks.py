"""/accounting/v1/webhooks: Stripe's notifications. Open to any caller; Stripe's signature is required."""

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request

from accounting.payments.errors import WebhookRefused
from accounting.payments.inbox import BODY_MAX, Source
from gateway.api.accounting.dependencies import Paying
from runtime.errors import BodyTooLarge, RequestInvalid

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService

router = APIRouter(prefix="/accounting/v1/webhooks")


@router.post("/stripe")
async def take_own(payments_service: Paying, request: Request) -> dict[str, bool]:
    """Receive events of the gateway's own account, verified by Stripe's signature."""
    return await _take(payments_service, "account", request)


@router.post("/stripe-connect")
async def take_connected(payments_service: Paying, request: Request) -> dict[str, bool]:
    """Receive events of sellers' accounts, verified by Stripe's signature."""
    return await _take(payments_service, "connect", request)


async def _take(payments_service: "PaymentsService", source: Source, request: Request) -> dict[str, bool]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            raise BodyTooLarge.of_request(BODY_MAX)
    signature = request.headers.get("stripe-signature", "")
    try:
        is_new = await payments_service.hear(source, bytes(body), signature)
    except WebhookRefused as error:
        raise RequestInvalid(f"This is not a valid Stripe webhook: {error}", code="webhook_refused") from error
    return {"received": True, "new": is_new}
