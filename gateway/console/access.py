"""The visitor of a page, and the dependencies that admit visitors or send them to the sign-in page."""

from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import quote, urlsplit

from fastapi import Depends, Request

from gateway.admin.authority import Authority
from gateway.admin.ledger_access import LedgerAccess
from gateway.app_state import Ledger, OptionalPayments
from gateway.console.browser import PATH, SIGN_IN_PATH, directory_of, is_htmx, own_path, signed_in
from gateway.console.navigation import Standing
from gateway.errors import RoleForbids
from gateway.identity.audit import Actor
from gateway.identity.caller import HOME, Caller
from gateway.identity.directory import Directory
from gateway.identity.sessions import SignedIn
from runtime.errors import KeyInvalid

_READING = ("GET", "HEAD")


class SignInNeeded(KeyInvalid):
    """No session, or an expired one; `sign_in_path` leads back to the page that was requested."""

    def __init__(self, request: Request) -> None:
        super().__init__("You are not signed in, or your session has expired. Sign in.")
        self.sign_in_path = f"{SIGN_IN_PATH}?next={quote(_place(request), safe='/')}"


@dataclass(frozen=True, slots=True)
class Visitor:
    """A user with a session. `csrf` is the token that the visitor's own forms carry."""

    request: Request
    directory: Directory
    who: SignedIn
    caller: Caller

    @property
    def csrf(self) -> str:
        return self.who.csrf

    @property
    def is_manager(self) -> bool:
        """Whether the visitor is an admin of their organization."""
        return self.caller.role == "admin"

    @property
    def is_operator(self) -> bool:
        """Whether the visitor is an instance admin: an admin of this gateway's own organization."""
        return self.is_manager and self.caller.organization_id == HOME

    @property
    def may_administer(self) -> bool:
        """Whether an admin may also make changes: not with a key that has no admin access."""
        return self.is_manager and self.caller.may_administer

    @property
    def standings(self) -> frozenset[Standing]:
        found: set[Standing] = {"user"}
        if self.caller.role == "seller":
            found.add("seller")
        if self.is_manager:
            found.add("manager")
        if self.is_operator:
            found.add("operator")
        return frozenset(found)

    @property
    def actor(self) -> Actor:
        """The name that the audit log has for the visitor."""
        return Actor(f"user:{self.caller.user_id}", self.address)

    @property
    def address(self) -> str:
        return self.request.client.host if self.request.client else ""

    @property
    def authority(self) -> Authority:
        """The visitor's authority in the form that the service layer takes."""
        over = None if self.is_operator else self.caller.organization_id
        return Authority(self.directory, self.actor, self.caller, over)


async def find_visitor(request: Request) -> Visitor | None:
    who = await signed_in(request)
    if who is None:
        return None
    caller = who.caller
    if not caller.key_id and caller.role == "admin":
        # A key may belong to an application or have leaked. A sign-in without a key proves the user.
        caller = replace(caller, may_administer=True)
    visitor = Visitor(request, directory_of(request), who, caller)
    request.state.visitor = visitor  # for the error page
    return visitor


async def _viewer(request: Request) -> Visitor:
    visitor = await find_visitor(request)
    if visitor is None:
        raise SignInNeeded(request)
    return visitor


Viewer = Annotated[Visitor, Depends(_viewer)]
"""Any signed-in user. Raises SignInNeeded, which becomes a redirect to the sign-in page and back."""


async def _manager(visitor: Viewer) -> Visitor:
    if not visitor.is_manager:
        raise RoleForbids(f"Only admins of your organization can do this; your role is {visitor.caller.role}.")
    _refuse_weak_key(visitor)
    return visitor


async def _operator(visitor: Viewer) -> Visitor:
    if not visitor.is_operator:
        raise RoleForbids("Only instance admins can do this.")
    _refuse_weak_key(visitor)
    return visitor


def _refuse_weak_key(visitor: Visitor) -> None:
    if visitor.request.method not in _READING and not visitor.may_administer:
        raise RoleForbids(
            "This key has no admin access. Sign in with a password, "
            "or with a key that `millrace key create NAME --admin` made."
        )


def refuse_weak_key(visitor: Visitor) -> None:
    """Raise RoleForbids for an admin's key without admin access, which may not see other users' money."""
    if visitor.is_manager and not visitor.may_administer:
        raise RoleForbids(
            "This key has no admin access, so you see only your own balance. "
            "Sign in with a password, or with a key that `millrace key create NAME --admin` made."
        )


async def _access(visitor: Viewer, ledger: Ledger, payments_service: OptionalPayments) -> LedgerAccess:
    return LedgerAccess(ledger, visitor.directory, visitor.actor, payments_service)


Manager = Annotated[Visitor, Depends(_manager)]
"""An admin of any organization, limited to that one, or an operator. Also raises RoleForbids."""
Operator = Annotated[Visitor, Depends(_operator)]
"""An instance admin. Also raises RoleForbids."""
Access = Annotated[LedgerAccess, Depends(_access)]
"""The ledger, with the visitor acting on it."""


def _place(request: Request) -> str:
    """Return the path the visitor was on: this page, or the page that sent a form or requested a part."""
    if request.method in _READING and not is_htmx(request):
        query = request.url.query
        return own_path(request.url.path + (f"?{query}" if query else ""))
    parts = urlsplit(request.headers.get("hx-current-url") or request.headers.get("referer") or PATH)
    return own_path(parts.path + (f"?{parts.query}" if parts.query else ""))
