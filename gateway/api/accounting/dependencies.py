"""Dependencies of the accounting API: the caller, the idempotency key, the payments, and a page of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Query, Response

from gateway.admin.fields import Facts
from gateway.admin.ledger_access import LedgerAccess
from gateway.api.accounting.keyed import MODE_HEADER, key_of
from gateway.api.authority import AnyCaller
from gateway.app_state import Ledger, OptionalPayments, Payments
from gateway.identity.caller import Caller
from runtime.errors import RequestInvalid

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService

Form = Literal["json", "csv"]


def _user_caller(authority: AnyCaller) -> Caller:
    if authority.caller is None:
        raise RequestInvalid(
            "This credential belongs to no user. Send a user's key as 'Authorization: Bearer YOUR_KEY'."
        )
    return authority.caller


async def _ledger_access(authority: AnyCaller, ledger: Ledger, payments_service: OptionalPayments) -> LedgerAccess:
    return LedgerAccess(ledger, authority.directory, authority.actor, payments_service)


Access = Annotated[LedgerAccess, Depends(_ledger_access)]
"""The ledger, with the caller acting on it."""
UserCaller = Annotated[Caller, Depends(_user_caller)]
Key = Annotated[str, Depends(key_of)]
Limit = Annotated[int, Query(ge=1, le=100)]


def _payments_service(payments_service: Payments, response: Response) -> Payments:
    """Return the payments service; the mode header of every answer says whether money is real."""
    response.headers[MODE_HEADER] = "live" if payments_service.is_live else "test"
    return payments_service


Paying = Annotated["PaymentsService", Depends(_payments_service)]


def page(payments_service: Payments, found: tuple[list[Any], str | None], facts: Callable[[Any], Facts]) -> Facts:
    rows, after = found
    return {"data": [facts(one) for one in rows], "next": after, "mode": payments_service.mode}
