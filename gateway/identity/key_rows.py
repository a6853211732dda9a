"""Keys as data: their permissions, their public form, and their database rows."""

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row

from gateway.identity.caller import Caller
from gateway.pages import Cursor
from gateway.quota import Quota
from gateway.settings.base import LaneName, Privacy


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """A key's permissions other than its lanes. None is no restriction; `expires_ns` is since the epoch.

    `privacy` is the minimum label of its requests; a lower `priority` number goes first. An admin's key has admin
    access only if requested, because most keys are in an application's settings.
    """

    models: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    privacy: Privacy = "public"
    priority: int = 0
    expires_ns: int | None = None
    may_administer: bool = False

    def columns(self) -> dict[str, Any]:
        return {
            "models": _as_json(self.models),
            "regions": _as_json(self.regions),
            "privacy": self.privacy,
            "priority": self.priority,
            "expires_ns": self.expires_ns,
            "has_admin_access": int(self.may_administer),
        }


ANY = KeyTerms()


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as users may see it."""

    key_id: str
    name: str
    prefix: str
    user_id: str
    organization_id: str
    department: str
    lanes: tuple[LaneName, ...]
    terms: KeyTerms
    created_ns: int
    revoked_ns: int | None
    previous_until_ns: int | None
    is_preemptible: bool = False

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.created_ns, self.key_id)

    def facts(self) -> dict[str, Any]:
        """Return a flat form without secrets, for the audit log, the admin API and the command line."""
        return {
            "key_id": self.key_id,
            "prefix": self.prefix,
            "name": self.name,
            "user": self.user_id,
            "organization_id": self.organization_id,
            "department": self.department,
            "lanes": list(self.lanes),
            "models": self.terms.models,
            "regions": self.terms.regions,
            "privacy": self.terms.privacy,
            "priority": self.terms.priority,
            "may_administer": self.terms.may_administer,
            "is_preemptible": self.is_preemptible,
            "created_ns": self.created_ns,
            "expires_ns": self.terms.expires_ns,
            "previous_until_ns": self.previous_until_ns,
            "revoked_ns": self.revoked_ns,
        }


def as_row(row: Row[Any]) -> KeyRow:
    """Convert a row of api_key with its user's organization."""
    return KeyRow(
        key_id=row.key_id,
        name=row.name,
        prefix=row.prefix,
        user_id=row.user_id,
        organization_id=row.organization_id,
        department=row.department,
        lanes=_lanes(row.lanes),
        terms=KeyTerms(
            _from_json(row.models),
            _from_json(row.regions),
            row.privacy,
            row.priority,
            row.expires_ns,
            bool(row.has_admin_access),
        ),
        created_ns=row.created_ns,
        revoked_ns=row.revoked_ns,
        previous_until_ns=row.previous_until_ns,
        is_preemptible=bool(row.is_preemptible),
    )


def as_caller(row: Row[Any], quotas: tuple[Quota, ...]) -> Caller:
    """Convert a row of api_key with its user's organization and role."""
    models, regions = _from_json(row.models), _from_json(row.regions)
    return Caller(
        key_id=row.key_id,
        key_prefix=row.prefix,
        user_id=row.user_id,
        department=row.department,
        lanes=frozenset(_lanes(row.lanes)),
        organization_id=row.organization_id,
        role=row.role,
        privacy=row.privacy,
        models=None if models is None else frozenset(models),
        regions=None if regions is None else frozenset(regions),
        priority=row.priority,
        may_administer=bool(row.has_admin_access),
        quotas=quotas,
        is_preemptible=bool(row.is_preemptible),
    )


def _lanes(stored: str) -> tuple[LaneName, ...]:
    return tuple(lane for lane in stored.split(",") if lane)  # type: ignore[misc]


def _as_json(values: tuple[str, ...] | None) -> str | None:
    return None if values is None else orjson.dumps(values).decode()


def _from_json(stored: str | None) -> tuple[str, ...] | None:
    return None if stored is None else tuple(orjson.loads(stored))
