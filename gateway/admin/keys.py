"""API keys: create, change, rotate, list and revoke them."""

import time
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from accounting.chart import department as department_account
from accounting.chart import terms_of
from accounting.errors import AccountUnknown
from gateway.admin.authority import Authority, refuse_who_may_not
from gateway.admin.fields import Body, Text, Texts, as_cursor
from gateway.admin.users import managed_user
from gateway.errors import RoleForbids
from gateway.identity.caller import Caller
from gateway.identity.key_queries import ALL, KeyFilter
from gateway.identity.key_rows import ANY, KeyRow, KeyTerms
from gateway.identity.keys import KEY_LASTS_MAX_S, IssuedKey
from gateway.identity.users import User, checked_name
from gateway.pages import PAGE_MAX, page_of
from gateway.settings.base import PRIVACY_RANK, LaneName, Privacy
from runtime.errors import NotFound, RequestInvalid

GRACE_S_MAX = 30 * 86_400

Lanes = Annotated[
    tuple[LaneName, ...],
    Field(min_length=1, max_length=8),
    AfterValidator(lambda lanes: tuple(dict.fromkeys(lanes))),
]
Region = Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,32}$")]
Regions = Annotated[tuple[Region, ...], Field(min_length=1, max_length=100)]
Priority = Annotated[int, Field(ge=0, le=100)]
Seconds = Annotated[int, Field(ge=1, le=KEY_LASTS_MAX_S)]


class ChangedKey(Body):
    """Missing fields stay unchanged; null removes a restriction."""

    lanes: Lanes | None = None
    models: Texts | None = None
    regions: Regions | None = None
    privacy: Privacy | None = None
    priority: Priority | None = None
    may_administer: bool | None = None
    expires_in_s: Seconds | None = None

    def terms(self, before: KeyTerms) -> KeyTerms:
        """Return the terms `before` with these changes."""
        given = self.model_fields_set
        expires_ns = None if self.expires_in_s is None else time.time_ns() + self.expires_in_s * 10**9
        return KeyTerms(
            self.models if "models" in given else before.models,
            self.regions if "regions" in given else before.regions,
            self.privacy or before.privacy,
            before.priority if self.priority is None else self.priority,
            expires_ns if "expires_in_s" in given else before.expires_ns,
            before.may_administer if self.may_administer is None else self.may_administer,
        )


class NewKey(ChangedKey):
    """A missing list allows everything; missing `lanes` allow the lanes of the settings."""

    name: Text
    user: Text
    department: Text | None = None
    privacy: Privacy = "public"
    priority: Priority = 0
    may_administer: bool = False


class Rotation(Body):
    """The old secret stays valid for `grace_s` seconds."""

    grace_s: Annotated[int, Field(ge=0, le=GRACE_S_MAX)] = 3600


def list_keys(
    authority: Authority,
    organization: str | None = None,
    user_id: str | None = None,
    filters: KeyFilter = ALL,
    *,
    before: str | None = None,
    limit: int = PAGE_MAX,
) -> tuple[Sequence[KeyRow], str | None]:
    """Return a page of keys, newest first, and the `before` of the next page: users see their own, admins more.

    Raises RoleForbids, NotFound, and RequestInvalid for a wrong `before`.
    """
    if authority.caller is None or authority.caller.user_id != user_id:
        refuse_who_may_not(authority.caller)
    within, cursor = authority.within(organization), as_cursor(before, "before")
    return page_of(authority.directory.keys.rows(within, user_id, filters, before=cursor, limit=limit + 1), limit)


def create_key(authority: Authority, new: NewKey) -> IssuedKey:
    """Create a key for a user whom the caller administers.

    Raises:
        RequestInvalid: the name or the department is not valid.
        NotFound: the caller administers no such user.
        RoleForbids: the caller is no admin, or the key would allow more than the caller's own.
        Conflict: the account is reserved for preemptible requests.
    """
    refuse_who_may_not(authority.caller)
    name, owner = checked_name(new.name), managed_user(authority, new.user)
    department = _department_of(authority, new.department, owner)
    terms = new.terms(ANY)
    lanes = new.lanes or authority.directory.lanes
    _refuse_more_than_own(authority, terms, lanes)
    keys = authority.directory.keys
    return keys.issue(name, lanes, user_id=owner.user_id, department=department, terms=terms, by=authority.actor)


def change_key(authority: Authority, key: str, changed: ChangedKey) -> KeyRow:
    """Change the restrictions of a key, given by its id or prefix. Raises RoleForbids, NotFound, Conflict."""
    row = _key_of(authority, key)
    terms = changed.terms(row.terms)
    _refuse_more_than_own(authority, terms, changed.lanes or row.lanes)
    return authority.directory.keys.change(row.key_id, terms, changed.lanes, authority.actor)


def rotate_key(authority: Authority, key: str, rotation: Rotation) -> IssuedKey:
    """Give a key, named by its id or prefix, a new secret. Raises RoleForbids, NotFound, Conflict."""
    row = _key_of(authority, key)
    _refuse_more_than_own(authority, row.terms, row.lanes)
    return authority.directory.keys.rotate(row.key_id, rotation.grace_s, authority.actor)


def revoke_key(authority: Authority, key: str) -> str:
    """Revoke a key, named by its id or prefix, and return its id.

    Raises RoleForbids, NotFound if it has already ended, and Conflict if several keys have the prefix.
    """
    return _revoke(authority, _key_of(authority, key), key)


def revoke_own_key(authority: Authority, caller: Caller, key: str) -> str:
    """Revoke a key of the caller's, named by its id or prefix; returns its id.

    A caller with a key may revoke that key alone: it may have leaked, and the others belong to other
    applications. Raises NotFound, also for another user's key, and RoleForbids.
    """
    row = authority.directory.keys.row(key)
    if row.user_id != caller.user_id or row.revoked_ns is not None:
        raise NotFound(f"no active key of yours has the ID or prefix {key}")
    if caller.key_id not in ("", row.key_id):
        raise RoleForbids(
            "With a key you can revoke that key alone. Sign in to the console with a password or your identity "
            "provider to revoke your others, or ask an admin."
        )
    return _revoke(authority, row, key)


def _revoke(authority: Authority, row: KeyRow, key: str) -> str:
    if not authority.directory.keys.revoke(row.key_id, authority.actor):
        raise NotFound(f"no active key has the ID or prefix {key}")
    return row.key_id


def _key_of(authority: Authority, key: str) -> KeyRow:
    """Return the key. Raises RoleForbids, Conflict, and NotFound, also if another organization owns it."""
    refuse_who_may_not(authority.caller)
    row = authority.directory.keys.row(key)
    authority.over(row.organization_id, f"key {key}")
    return row


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


def _refuse_more_than_own(authority: Authority, terms: KeyTerms, lanes: tuple[LaneName, ...]) -> None:
    """Refuse an admin of one organization a key with more permissions than their own.

    A session without a key has those of a new default key. `may_administer` is not compared: callers without it
    are refused before. Raises RoleForbids, with the field that would allow more.
    """
    caller = authority.caller
    if caller is None or authority.organization_id is None:
        return
    row = authority.directory.keys.row(caller.key_id) if caller.key_id else None
    own, own_lanes = (row.terms, row.lanes) if row else (ANY, tuple(caller.lanes))

    def more(field: str, allowed: str) -> RoleForbids:
        return RoleForbids(f"{field}: your own key allows {allowed}", param=field)

    for field, requested, allowed in (
        ("lanes", lanes, own_lanes),
        ("models", terms.models, own.models),
        ("regions", terms.regions, own.regions),
    ):
        if allowed is not None and (requested is None or not set(requested) <= set(allowed)):
            raise more(field, f"{', '.join(sorted(allowed))} alone")
    if PRIVACY_RANK[terms.privacy] < PRIVACY_RANK[own.privacy]:
        raise more("privacy", f"no less private label than {own.privacy}")
    if terms.priority < own.priority:
        raise more("priority", f"no smaller number than {own.priority}")
    if own.expires_ns is not None and (terms.expires_ns is None or terms.expires_ns > own.expires_ns):
        raise more("expires_in_s", "no later expiry than its own")
