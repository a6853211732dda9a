"""GET /admin/audit: who did what, newest first, a page at a time."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from gateway.admin.fields import as_ns
from gateway.admin.parameters import OptionalText, Since
from gateway.api.authority import Manager
from gateway.identity.audit import PAGE_MAX, Filter

router = APIRouter(prefix="/audit")


@router.get("")
def show_audit(
    authority: Manager,
    organization: OptionalText = None,
    action: OptionalText = None,
    actor: OptionalText = None,
    target: OptionalText = None,
    since: Since = None,
    until: Since = None,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
) -> dict[str, Any]:
    """List actions of admins, newest first. `next` is the `before` of the next page, null on the last one."""
    filters = Filter(authority.within(organization), action, actor, target, as_ns(since), as_ns(until))
    found = authority.directory.audit.entries(filters, before_seq=before, limit=limit)
    return {
        "entries": [asdict(entry) for entry in found],
        "next": found[-1].seq if len(found) == limit else None,
    }
