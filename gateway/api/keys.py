"""/admin/keys: create, change, rotate and revoke keys."""

import time
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from accounting.chart import department as department_account
from accounting.chart import terms_of
from accounting.errors import AccountUnknown
from gateway.admin.authority import Authority
from gateway.admin.fields import Body, Text, Texts, as_cursor
from gateway.admin.parameters import Named, OptionalText, PageCursor, PageLimit
from gateway.api.authority import Manager
from gateway.api.delegation import OfSession, refuse_more_than_own
from gateway.api.users import managed_user
from gateway.errors import RoleForbids
from gateway.identity.key_rows import KeyRow, KeyTerms
from gateway.identity.keys import KEY_LASTS_MAX_S, IssuedKey
from gateway.identity.users import User, checked_name
from gateway.pages import PAGE_MAX, cut
from gateway.settings.base import LaneName, Privacy
from runtime.errors import NotFound, RequestInvalid

router = APIRouter(prefix="/keys")

Lanes = Annotated[tuple[LaneName, ...], Field(min_length=1, max_length=8)]
Region = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,32}$")]
Regions = Annotated[tuple[Region, ...], Field(min_length=1, max_length=100)]
Priority = Annotated[int, Field(ge=0, le=100)]
Seconds = Annotated[int, Field(ge=1, le=KEY_LASTS_MAX_S)]


class NewKey(Body):
    """A missing list allows everything; missing `lanes` allow the lanes of the settings."""

    name: Text
    user: Text
    department: Text | None = None
    lanes: Lanes | None = None
    models: Texts | None = None
    regions: Regions | None = None
    privacy: Privacy = "public"
    priority: Priority = 0
    may_administer: bool = False
    expires_in_s: Seconds | None = None


class ChangedKey(Body):
    """Missing fields stay unchanged; null removes a restriction."""

    lanes: Lanes | None = None
    models: Texts | None = None
    regions: Regions | None = None
    privacy: Privacy | None = None
    priority: Priority | None = None
    may_administer: bool | None = None
    expires_in_s: Seconds | None = None


class Rotation(Body):
    grace_s: Annotated[int, Field(ge=0, le=30 * 86400)] = 3600


@router.get("")
def list_keys(
    authority: Manager,
    organization: OptionalText = None,
    user: OptionalText = None,
    before: PageCursor = None,
    limit: PageLimit = PAGE_MAX,
) -> dict[str, Any]:
    """List keys that the caller administers, without their secrets, newest first.

    `next` is the `before` of the next page, null on the last one.
    """
    return key_page(authority, authority.within(organization), user, before, limit)


@router.post("")
def create_key(authority: Manager, body: NewKey) -> dict[str, Any]:
    """Create a key; only this answer has its secret."""
    owner = managed_user(authority, body.user)
    department = _department_of(authority, body.department, owner)
    terms = KeyTerms(
        body.models,
        body.regions,
        body.privacy,
        body.priority,
        _expiry(body.expires_in_s),
        body.may_administer,
    )
    lanes = body.lanes or authority.services.settings.policy.lanes
    _refuse_more_than_own(authority, terms, lanes)
    issued = authority.services.keys.issue(
        checked_name(body.name),
        lanes,
        user_id=body.user,
        department=department,
        terms=terms,
        by=authority.actor,
    )
    return _shown_once(issued)


@router.patch("/{key}")
def change_key(authority: Manager, key: Named, body: ChangedKey) -> dict[str, Any]:
    """Change the restrictions of a key; null removes one."""
    row = _key_of(authority, key)
    given = body.model_fields_set
    terms = KeyTerms(
        body.models if "models" in given else row.terms.models,
        body.regions if "regions" in given else row.terms.regions,
        body.privacy or row.terms.privacy,
        row.terms.priority if body.priority is None else body.priority,
        _expiry(body.expires_in_s) if "expires_in_s" in given else row.terms.expires_ns,
        row.terms.may_administer if body.may_administer is None else body.may_administer,
    )
    _refuse_more_than_own(authority, terms, body.lanes or row.lanes)
    return authority.services.keys.change(row.key_id, terms, body.lanes, authority.actor).facts()


@router.post("/{key}/rotate")
def rotate_key(authority: Manager, key: Named, body: Rotation) -> dict[str, Any]:
    """Rotate a key; the old secret stays valid for the grace period."""
    row = _key_of(authority, key)
    _refuse_more_than_own(authority, row.terms, row.lanes)
    return _shown_once(authority.services.keys.rotate(row.key_id, body.grace_s, authority.actor))


@router.delete("/{key}")
def revoke_key(authority: Manager, key: Named) -> dict[str, Any]:
    """Revoke a key.

    Raises NotFound if the key has already ended.
    """
    row = _key_of(authority, key)
    if not authority.services.keys.revoke(row.key_id, authority.actor):
        raise NotFound(f"no active key has the ID or prefix {key}")
    return {"revoked": row.key_id}


def key_page(
    authority: Authority, organization_id: str | None, user_id: str | None, before: str | None, limit: int
) -> dict[str, Any]:
    """Raises RequestInvalid."""
    cursor = as_cursor(before, "before")
    found = authority.services.keys.rows(organization_id, user_id, before=cursor, limit=limit + 1)
    shown, last = cut(found, limit)
    return {"keys": [row.facts() for row in shown], "next": str(last.cursor) if last else None}


def _key_of(authority: Authority, key: str) -> KeyRow:
    """Return the key. Raises NotFound, also if another organization owns it."""
    row = authority.services.keys.row(key)
    authority.over(row.organization_id, f"key {key}")
    return row


def _refuse_more_than_own(authority: Authority, terms: KeyTerms, lanes: tuple[LaneName, ...]) -> None:
    """Refuse an admin of one organization a key with more permissions than their own.

    Raises RoleForbids.
    """
    own = authority.caller
    if own is not None and authority.organization_id is not None:
        allowed = authority.services.keys.row(own.key_id) if own.key_id else OfSession(own.lanes)
        refuse_more_than_own(allowed, terms, lanes)


def _department_of(authority: Authority, requested: str | None, owner: User) -> str:
    """Return the department to which a key's usage is booked; by default the organization's own.

    Raises RequestInvalid, RoleForbids.
    """
    department = requested or owner.organization_id
    try:
        terms_of(department_account(department))
    except AccountUnknown:
        raise RequestInvalid("department: must be letters, digits and . _ @ -", param="department") from None
    if authority.organization_id is not None and department != authority.organization_id:
        text = f"department: your organization's is {authority.organization_id}; instance admins give others"
        raise RoleForbids(text, param="department")
    return department


def _expiry(expires_in_s: int | None) -> int | None:
    return None if expires_in_s is None else time.time_ns() + expires_in_s * 10**9


def _shown_once(issued: IssuedKey) -> dict[str, Any]:
    return {"api_key": issued.token} | issued.row.facts()
