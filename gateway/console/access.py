"""Who looks at a page, and the dependencies that let them in or send them to the sign-in."""

from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import quote, urlsplit

from fastapi import Depends, Request

from gateway.api.authority import Authority
from gateway.console.browser import PATH, SIGN_IN_PATH, is_htmx, own_path, signed_in
from gateway.console.navigation import Standing
from gateway.errors import KeyInvalid, RoleForbids
from gateway.identity.audit import Actor
from gateway.identity.caller import HOME, Caller
from gateway.identity.directory import Directory
from gateway.identity.sessions import SignedIn
from gateway.services import Services

_READING = ("GET", "HEAD")


class SignInNeeded(KeyInvalid):
    """Nobody is signed in, or the session has ended; `sign_in_path` leads back to where they were."""

    def __init__(self, request: Request) -> None:
        super().__init__("Sign in first: your session has ended, or there was none.")
        self.sign_in_path = f"{SIGN_IN_PATH}?next={quote(_place(request), safe='/')}"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody with a session. `csrf` is what their own forms carry."""

    request: Request
    services: Services
    who: SignedIn
    caller: Caller

    @property
    def csrf(self) -> str:
        return self.who.csrf

    @property
    def is_manager(self) -> bool:
        """An admin of their organization."""
        return self.caller.role == "admin"

    @property
    def is_operator(self) -> bool:
        """An admin of the house."""
        return self.is_manager and self.caller.organization_id == HOME

    @property
    def may_administer(self) -> bool:
        """Whether what admins may see they may change, too: not with a key that was not made for that."""
        return self.is_manager and self.caller.may_administer

    @property
    def standings(self) -> frozenset[Standing]:
        found: set[Standing] = {"anybody"}
        if self.caller.role == "seller":
            found.add("seller")
        if self.is_manager:
            found.add("manager")
        if self.is_operator:
            found.add("operator")
        return frozenset(found)

    @property
    def directory(self) -> Directory:
        return self.services.directory

    @property
    def actor(self) -> Actor:
        """As whom the audit log knows them."""
        return Actor(f"person:{self.caller.user_id}", self.address)

    @property
    def address(self) -> str:
        return self.request.client.host if self.request.client else ""

    @property
    def authority(self) -> Authority:
        """The same for what the admin API's functions ask."""
        over = None if self.is_operator else self.caller.organization_id
        return Authority(self.services, self.actor, self.caller, over)


async def find_visitor(request: Request) -> Visitor | None:
    who = await signed_in(request)
    if who is None:
        return None
    caller = who.caller
    if not caller.key_id and caller.role == "admin":
        # A key can be an application's, and have leaked. Whoever signs in without one is the person.
        caller = replace(caller, may_administer=True)
    visitor = Visitor(request, request.app.state.services, who, caller)
    request.state.visitor = visitor  # for the page that says what went wrong
    return visitor


async def _viewer(request: Request) -> Visitor:
    visitor = await find_visitor(request)
    if visitor is None:
        raise SignInNeeded(request)
    return visitor


async def _manager(request: Request) -> Visitor:
    visitor = await _viewer(request)
    if not visitor.is_manager:
        raise RoleForbids(f"This is for admins of your organization; you are a {visitor.caller.role}.")
    _refuse_weak_key(visitor)
    return visitor


async def _operator(request: Request) -> Visitor:
    visitor = await _viewer(request)
    if not visitor.is_operator:
        raise RoleForbids("This is for admins of the house, and you are none.")
    _refuse_weak_key(visitor)
    return visitor


def _refuse_weak_key(visitor: Visitor) -> None:
    if visitor.request.method not in _READING and not visitor.may_administer:
        raise RoleForbids(
            "You signed in with a key that may not administer. Sign in with a password, "
            "or with a key that `millrace key create NAME --admin` made."
        )


Viewer = Annotated[Visitor, Depends(_viewer)]
"""Whoever is signed in. Raises SignInNeeded, which becomes a way to the sign-in and back."""
Manager = Annotated[Visitor, Depends(_manager)]
"""An admin of any organization, over that one alone, or an operator. Raises RoleForbids, too."""
Operator = Annotated[Visitor, Depends(_operator)]
"""An admin of the house. Raises RoleForbids, too."""


def _place(request: Request) -> str:
    """Where somebody was: this page, or the one that sent a form or asked for a part of itself."""
    if request.method in _READING and not is_htmx(request):
        query = request.url.query
        return own_path(request.url.path + (f"?{query}" if query else ""))
    parts = urlsplit(request.headers.get("hx-current-url") or request.headers.get("referer") or PATH)
    return own_path(parts.path + (f"?{parts.query}" if parts.query else ""))
