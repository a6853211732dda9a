"""Dependencies of payment routes: the payments service, and the check whether a caller may see an object."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Query, Request, Response

from gateway.api.accounting.dependencies import Facts, is_operator
from gateway.api.accounting.keyed import MODE_HEADER
from gateway.api.authority import AnyCaller, Authority
from gateway.errors import FeatureUnsupported, RoleForbids
from runtime.errors import NotFound

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService

LISTED_MAX = 100

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX)]


def _payments_service(request: Request, response: Response) -> "PaymentsService":
    """Return the payments service; the mode header of every answer says whether money is real."""
    payments_service: PaymentsService | None = request.app.state.services.payments_service
    if payments_service is None:
        raise FeatureUnsupported("This gateway has no payments, because Stripe is not configured.")
    response.headers[MODE_HEADER] = "live" if payments_service.is_live else "test"
    return payments_service


Paying = Annotated["PaymentsService", Depends(_payments_service)]


async def own(
    payments_service: "PaymentsService",
    authority: AnyCaller,
    find: Callable[[str], T],
    object_id: str,
    owner: Callable[[T], str],
) -> T:
    """Return an object, which only its owner and operators may see. Raises NotFound, also for another user's."""
    found = await payments_service.ask(find, object_id)
    caller = authority.caller
    if not is_operator(authority) and (caller is None or owner(found) != caller.user_id):
        raise NotFound(f"{object_id} not found")
    return found


def whose(authority: Authority, user_id: str | None) -> str | None:
    """Return the user to list: the caller; for operators the requested user or None (all). Raises RoleForbids."""
    if is_operator(authority):
        return user_id
    assert authority.caller, "the machine is an operator"
    if user_id not in (None, authority.caller.user_id):
        raise RoleForbids("user: only instance admins see what others paid", param="user")
    return authority.caller.user_id


def page(
    payments_service: "PaymentsService", found: Sequence[Any], limit: int, facts: Callable[[Any], Facts]
) -> Facts:
    """Return the first `limit` of the objects; `next` is the `before` of the next page."""
    shown = found[:limit]
    return {
        "data": [facts(one) for one in shown],
        "next": shown[-1].id if len(found) > limit else None,
        "mode": payments_service.mode,
    }
