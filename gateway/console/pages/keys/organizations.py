"""Organizations: groups of users that share limits; and the settings of single sign-on."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from gateway.admin.users import NewOrganization, add_organization, list_organizations
from gateway.console.access import Manager, Operator, Visitor
from gateway.console.browser import root_of
from gateway.console.forms import Form, submit_to
from gateway.console.pages.keys.figures import limit_lines
from gateway.console.renderer import go, page
from gateway.parameters import Named

router = APIRouter(prefix="/organizations")

_USERS_SHOWN = 100


@router.get("")
async def show_organizations(visitor: Manager) -> Response:
    return await _list(visitor, Form())


@router.post("")
async def add(visitor: Operator) -> Response:
    made, form = await submit_to(visitor, NewOrganization, add_organization)
    if made is None:
        return await _list(visitor, form, 400)
    return go(visitor, f"/console/keys/organizations/{made.organization_id}", f"{made.name} created.")


@router.get("/{organization_id}")
async def show_organization(visitor: Manager, organization_id: Named) -> Response:
    values = await asyncio.to_thread(_look_at, visitor, organization_id)
    return page("keys/organization.html", visitor, tab="organizations", **values)


async def _list(visitor: Visitor, form: Form[NewOrganization], status: int = 200) -> Response:
    values = await asyncio.to_thread(_look, visitor)
    return page("keys/organizations.html", visitor, status, form=form, tab="organizations", **values)


def _look(visitor: Visitor) -> dict[str, Any]:
    directory, organizations = visitor.directory, list_organizations(visitor.authority)
    ids = [one.organization_id for one in organizations]
    return {
        "organizations": organizations,
        "users_in": directory.users.number_in(ids),
        "keys_in": directory.keys.opening("organization_id", ids),
        "identity": directory.settings,
        "redirect_address": f"{root_of(visitor.request)}/console/oidc/callback",
    }


def _look_at(visitor: Visitor, organization_id: str) -> dict[str, Any]:
    """Return the organization's own limits and those of its teams. Raises NotFound."""
    directory, authority = visitor.directory, visitor.authority
    authority.over(organization_id, f"organization {organization_id}")
    organization = directory.users.organization(organization_id)
    with directory.read() as session:
        own = limit_lines(session, [f"organization:{organization.organization_id}"])
        of_teams = limit_lines(session, directory.quotas.teams(organization.organization_id))
    return {
        "organization": organization,
        "limits": own,
        "of_teams": of_teams,
        "team_names": {line.quota.scope: line.quota.scope.partition("/")[2] for line in of_teams},
        "users": directory.users.users(organization.organization_id, limit=_USERS_SHOWN),
        "users_count": directory.users.count(organization.organization_id),
        "may_set": visitor.may_administer and visitor.is_operator,
        "may_set_teams": visitor.may_administer,
    }
