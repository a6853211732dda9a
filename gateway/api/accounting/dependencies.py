"""Dependencies of the accounting API: the caller, the user or scope of a request, and its idempotency key."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from fastapi import Depends, Response

from gateway.admin.authority import is_operator, managed, organization_of, scope_of, user_of
from gateway.admin.fields import Facts
from gateway.api.accounting.keyed import key_of
from gateway.api.authority import AnyCaller
from gateway.billing.sheets import as_csv
from gateway.identity.caller import Caller
from runtime.errors import RequestInvalid

__all__ = [
    "Facts",
    "Form",
    "Key",
    "UserCaller",
    "is_operator",
    "managed",
    "organization_of",
    "scope_of",
    "sheet",
    "user_of",
]

Form = Literal["json", "csv"]


def _user_caller(authority: AnyCaller) -> Caller:
    if authority.caller is None:
        raise RequestInvalid(
            "This credential belongs to no user. Send a user's key as 'Authorization: Bearer YOUR_KEY'."
        )
    return authority.caller


UserCaller = Annotated[Caller, Depends(_user_caller)]
Key = Annotated[str, Depends(key_of)]


def sheet(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]], after: int | None) -> Response:
    """Return a page as a CSV file; the header x-next has the offset of the next page, if there is one."""
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    if after is not None:
        headers["x-next"] = str(after)
    return Response(as_csv(columns, rows), media_type="text/csv; charset=utf-8", headers=headers)
