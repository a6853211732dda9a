"""Dependencies of the accounting API: the caller, the user or scope of a request, and its idempotency key."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Depends, Response

from gateway.api.accounting.keyed import key_of
from gateway.api.authority import AnyCaller, Authority, refuse_who_may_not
from gateway.billing.sheets import as_csv
from gateway.errors import RoleForbids
from gateway.identity.caller import Caller
from runtime.errors import RequestInvalid

Facts: TypeAlias = dict[str, Any]
Form = Literal["json", "csv"]


def _user_caller(authority: AnyCaller) -> Caller:
    if authority.caller is None:
        raise RequestInvalid(
            "This credential belongs to no user. Send a user's key as 'Authorization: Bearer YOUR_KEY'."
        )
    return authority.caller


UserCaller = Annotated[Caller, Depends(_user_caller)]
Key = Annotated[str, Depends(key_of)]


def is_operator(authority: Authority) -> bool:
    """Whether this is the machine's own token, or an instance admin whose key has admin access."""
    caller = authority.caller
    return caller is None or (authority.organization_id is None and caller.may_administer)


def user_of(authority: Authority, user_id: str | None) -> str:
    """Return the user that a request is about: the caller, or for admins any user whom they administer.

    Raises:
        RequestInvalid: the machine's own token must name a user.
        RoleForbids: it is another user, and the caller is no admin.
        NotFound: there is no such user, or only in another organization.
    """
    caller = authority.caller
    if user_id is None:
        if caller is None:
            raise RequestInvalid(
                "user: this credential belongs to no user. Name one, as in ?user=ann", param="user"
            )
        return caller.user_id
    if caller is not None and caller.user_id == user_id:
        return user_id
    refuse_who_may_not(caller)
    user = authority.directory.users.ever(user_id)
    authority.over(user.organization_id, f"user {user_id}")
    return user.user_id


def organization_of(authority: Authority, organization_id: str) -> str:
    """Return the organization with this id: the caller's own, or for instance admins any.

    Raises RoleForbids, NotFound.
    """
    if authority.caller is not None and authority.caller.organization_id == organization_id:
        return organization_id
    return managed(authority, organization_id)


def managed(authority: Authority, organization_id: str) -> str:
    """Return an organization that the caller administers, by its id. Raises RoleForbids, NotFound."""
    refuse_who_may_not(authority.caller)
    authority.over(organization_id, f"organization {organization_id}")
    return authority.directory.users.organization(organization_id).organization_id


def sheet(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]], after: int | None) -> Response:
    """Return a page as a CSV file; the header x-next has the offset of the next page, if there is one."""
    headers = {"content-disposition": f'attachment; filename="{name}.csv"'}
    if after is not None:
        headers["x-next"] = str(after)
    return Response(as_csv(columns, rows), media_type="text/csv; charset=utf-8", headers=headers)


def scope_of(authority: Authority, scope: str) -> str | None:
    """Return a limit scope that the caller may see: their own, or for admins any they administer; None for `all`.

    Raises RequestInvalid, NotFound, RoleForbids.
    """
    caller = authority.caller
    if scope == "all":
        refuse_who_may_not(caller)
        if authority.organization_id is not None:
            raise RoleForbids("scope: only instance admins see all users'", param="scope")
        return None
    organization_id = authority.directory.quotas.organization_of(scope)
    if caller is None or not _is_own(authority, caller, scope):
        refuse_who_may_not(caller)
        authority.over(organization_id, scope.replace(":", " ", 1))
    return scope


def _is_own(authority: Authority, caller: Caller, scope: str) -> bool:
    kind, _, name = scope.partition(":")
    if kind == "key":
        return name == caller.key_id or authority.services.keys.row(name).user_id == caller.user_id
    return scope == f"user:{caller.user_id}"
