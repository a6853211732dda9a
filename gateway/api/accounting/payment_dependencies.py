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
    from gateway.billing.payments.payments_service import Till

LISTED_MAX = 100

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=LISTED_MAX)]


def _till(request: Request, response: Response) -> "Till":
    """Payments; every answer about them says whether money is real."""
    till: Till | None = request.app.state.services.till
    if till is None:
        raise FeatureUnsupported("This gateway takes no payments: its owner has not set up Stripe.")
    response.headers[MODE_HEADER] = "live" if till.is_live else "test"
    return till


Paying = Annotated["Till", Depends(_till)]


async def own(
    till: "Till", authority: AnyCaller, find: Callable[[str], T], object_id: str, owner: Callable[[T], str]
) -> T:
    """Return an object, which only its owner and operators may see. Raises NotFound, also for another user's."""
    found = await till.ask(find, object_id)
    caller = authority.caller
    if not is_operator(authority) and (caller is None or owner(found) != caller.user_id):
        raise NotFound(f"there is no {object_id} here")
    return found


def whose(authority: Authority, wanted: str | None) -> str | None:
    """Return the user to list: the caller; for operators the requested user or None (all). Raises RoleForbids."""
    if is_operator(authority):
        return wanted
    assert authority.caller, "the machine is an operator"
    if wanted not in (None, authority.caller.user_id):
        raise RoleForbids("user: only instance admins see what others paid", param="user")
    return authority.caller.user_id


def page(till: "Till", found: Sequence[Any], limit: int, facts: Callable[[Any], Facts]) -> Facts:
    """The first `limit` of what was found; `next` is the `before` of the next page."""
    shown = found[:limit]
    return {
        "data": [facts(one) for one in shown],
        "next": shown[-1].id if len(found) > limit else None,
        "mode": till.mode,
    }
