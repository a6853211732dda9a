"""Sign-in through an identity provider: by subject, by verified address, or as a new user if allowed."""

import hashlib
import re
import time
from collections.abc import Callable
from typing import Any, get_args

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gateway.identity import audit, users
from gateway.identity.audit import Actor
from gateway.identity.caller import MARKET_JOBS
from gateway.identity.oidc import Claims
from gateway.identity.provider_answers import LoginRefused
from gateway.identity.tables import user_table
from gateway.identity.users import User
from gateway.settings.base import Role
from gateway.settings.identity import IdentitySettings
from runtime.errors import Conflict

# Characters outside this set are removed from ids and names that the provider sends.
_NOT_IN_ID = re.compile("[^A-Za-z0-9._@-]")
_STRONGEST_FIRST: tuple[Role, ...] = ("admin", "seller", "member")


def sign_in(write: Callable[[], Session], settings: IdentitySettings, claims: Claims, address: str) -> User:
    """Return the user of these claims, with the role that the provider states now.

    Raises:
        LoginRefused: no user matches, or the rules do not allow the sign-in.
    """
    _refuse_foreign_domain(settings, claims)
    try:
        with write() as session, session.begin():
            user = _find(session, claims, address) or _create(session, settings, claims, address)
            return _with_role(session, settings, claims, user, address)
    except IntegrityError:
        raise LoginRefused("The same user signed in elsewhere at the same moment. Try again.") from None


def role_of(settings: IdentitySettings, claims: Claims) -> Role | None:
    """Return the strongest role in the provider's claim; member if it has none, None if no roles are set."""
    if not settings.oidc_roles:
        return None
    claim = claims.values.get(settings.oidc_role_claim)
    values = claim if isinstance(claim, list) else [claim]
    given = {
        settings.oidc_roles[value] for value in values if isinstance(value, str) and value in settings.oidc_roles
    }
    assert set(_STRONGEST_FIRST) == set(get_args(Role)), "every role has its place"
    return next((role for role in _STRONGEST_FIRST if role in given), "member")


def _refuse_foreign_domain(settings: IdentitySettings, claims: Claims) -> None:
    allowed = {domain.lower() for domain in settings.oidc_allowed_domains}
    if allowed and (claims.email is None or claims.email.rpartition("@")[2] not in allowed):
        raise LoginRefused(
            "This gateway admits only verified addresses of certain domains, and yours is not one of them."
        )


def _find(session: Session, claims: Claims, address: str) -> User | None:
    column = user_table.c
    same = (column.issuer == claims.issuer) & (column.subject == claims.subject)
    found = session.execute(select(column.user_id, column.removed_ns).where(same)).one_or_none()
    if found is not None:
        if found.removed_ns is not None:
            raise LoginRefused("You were removed from this gateway. Ask an admin to add you again.")
        return users.present(session, found.user_id)
    return _find_by_email(session, claims, address)


def _find_by_email(session: Session, claims: Claims, address: str) -> User | None:
    """Link these claims to the user who was added with this address and has not signed in yet.

    Code that sets an address checks who may: admins of the home organization, and admins of the organization
    that new users join anyway.
    """
    if claims.email is None:
        return None
    column = user_table.c
    found = session.scalar(select(column.user_id).where(users.awaits_sign_in(claims.email)))
    if found is None:
        return None
    link = {"issuer": claims.issuer, "subject": claims.subject}
    session.execute(update(user_table).where(column.user_id == found).values(link))
    user = users.present(session, found)
    _record(session, "user.link", user, address, link)
    return user


def _create(session: Session, settings: IdentitySettings, claims: Claims, address: str) -> User:
    if not settings.oidc_auto_create:
        known_as = claims.email or claims.subject
        raise LoginRefused(
            f"No user has the address {known_as}. Ask an admin to add you with this e-mail address."
        )
    organization = users.organization_named(session, settings.oidc_organization)
    made = User(
        _free_id(session, claims),
        organization.organization_id,
        _shown(claims.name) or claims.email or claims.subject[: users.NAME_MAX],
        claims.email,
        "member",
        time.time_ns(),
    )
    users.insert(session, made, Actor("identity provider", address))
    link = {"issuer": claims.issuer, "subject": claims.subject}
    session.execute(update(user_table).where(user_table.c.user_id == made.user_id).values(link))
    return made


def _free_id(session: Session, claims: Claims) -> str:
    """Return a readable account id that is free: it never takes over another user's id."""
    told_apart = hashlib.sha256(f"{claims.issuer}\n{claims.subject}".encode()).hexdigest()[:12]
    base_id = _NOT_IN_ID.sub("-", claims.email or "")[:60]
    same = select(user_table.c.user_id).where(user_table.c.user_id == base_id)
    is_account = session.execute(same).first() is not None or users.has_account(session, base_id)
    is_taken = is_account or base_id == MARKET_JOBS
    return base_id if base_id and not is_taken else f"{base_id or 'user'}-{told_apart}"


def _with_role(session: Session, settings: IdentitySettings, claims: Claims, user: User, address: str) -> User:
    role = role_of(settings, claims)
    if role is None or role == user.role:
        return user
    try:
        return users.change_role(session, user.user_id, role, Actor("identity provider", address))
    except Conflict:
        # The last instance admin keeps the role, whatever the provider states.
        return user


def _record(session: Session, action: str, user: User, address: str, after: dict[str, Any]) -> None:
    by = Actor("identity provider", address)
    target = f"user:{user.user_id}"
    audit.record(session, by, action, target, organization_id=user.organization_id, after=after)


def _shown(name: str | None) -> str | None:
    shown = "".join(c for c in name or "" if c.isprintable()).strip()
    return shown[: users.NAME_MAX] or None
