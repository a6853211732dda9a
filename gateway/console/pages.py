"""The console: requests and money of whoever signed in; admins of the house see machines, too."""

import asyncio
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles

from accounting.money import format_usd
from gateway.api.admin import describe
from gateway.console import sign_in
from gateway.console.browser import PATH, root_of, signed_in
from gateway.console.rendering import page
from gateway.identity.caller import HOME, Caller
from gateway.records.request_log import RequestEntry
from gateway.services import Services

REQUESTS_SHOWN = 25
# Whoever signed in without a key sees what their newest keys asked.
_KEYS_SHOWN = 10

static = StaticFiles(directory=Path(__file__).parent / "static")
router = APIRouter(prefix="/console", include_in_schema=False)
router.include_router(sign_in.router)


@router.get("/")
async def with_slash() -> Response:
    """As people type it."""
    return RedirectResponse(PATH, status_code=308)


@router.get("")
async def overview(request: Request) -> Response:
    services: Services = request.app.state.services
    who = await signed_in(request)
    if who is None:
        return sign_in.login_page(request)
    caller = who.caller
    balance = await services.books.balance(caller.user_id)
    # Machines and everybody's requests are the house's affair; others see what they asked themselves.
    is_of_house = caller.role == "admin" and caller.organization_id == HOME
    return page(
        "overview.html",
        base_url=root_of(request) + "/v1",
        who=f"{caller.key_prefix}…" if caller.key_prefix else who.name,
        csrf=who.csrf,
        user=caller.user_id,
        cluster=describe(services.controller.topology()) if is_of_house else None,
        lanes={
            name: lane.models() for name, lane in services.lanes.items() if is_of_house or name in caller.lanes
        },
        requests=await asyncio.to_thread(_requests, services, None if is_of_house else caller),
        available=format_usd(balance.available_nano),
        held=format_usd(balance.held_nano),
    )


def _requests(services: Services, caller: Caller | None) -> list[RequestEntry]:
    """The newest requests of a key, of a person's keys, or of all."""
    if caller is None:
        return services.request_log.newest(REQUESTS_SHOWN)
    if caller.key_id:
        return services.request_log.newest(REQUESTS_SHOWN, caller.key_id)
    keys = services.keys.rows(user_id=caller.user_id)[-_KEYS_SHOWN:]
    found = [entry for key in keys for entry in services.request_log.newest(REQUESTS_SHOWN, key.key_id)]
    return sorted(found, key=lambda entry: entry.started_ns, reverse=True)[:REQUESTS_SHOWN]
