"""The page of routes: it is what the gateway has, and what it says of who may call is so."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute

from cluster.trust.addresses import Target
from gateway.api.edge import BoundedBodies
from gateway.api.reference import ADMINS, ANYONE, KEY, OPERATORS, entries, page
from gateway.app import Services, create_web, open_services
from gateway.dialects.routes import ROUTES
from gateway.settings import Settings
from market.settings.marketplace import MarketplaceSettings
from tests.databases import prepared
from tests.gateway.api.conftest import Served

ROOT = Path(__file__).parents[3]
ENTRIES = entries()
# Stripe is not configured here: these refuse all callers alike.
_PAYMENTS = tuple(
    f"/accounting/v1/{name}" for name in ("payments", "topups", "refunds", "payouts", "sellers", "webhooks")
)
_HOT = {route.path for route in ROUTES}
"""They are answered before any framework."""


@asynccontextmanager
async def instance_in(tmp_path: Path) -> AsyncIterator[Served]:
    settings = Settings(data_dir=tmp_path, marketplace=MarketplaceSettings(enabled=True))
    async with open_services(settings, prepared(tmp_path)) as services:
        yield Served(services, create_web(services, Target("127.0.0.1", 1)))


def test_the_page_of_routes_is_the_routes() -> None:
    written = (ROOT / "docs" / "api.md").read_text()
    assert written == page(ENTRIES), "python -m gateway.api.reference > docs/api.md"


def test_every_route_says_what_it_does() -> None:
    for entry in ENTRIES:
        assert entry.does.endswith("."), (
            f"{entry.method} {entry.path}: its handler's docstring begins with a sentence"
        )
        assert f"`{entry.method} {entry.path}`" in page(ENTRIES), "a group has its prefix"


@pytest.mark.anyio
async def test_no_route_of_a_gateway_is_left_out(tmp_path: Path) -> None:
    told = {(entry.method, re.sub(r"{(name|path)}", r"{\1:path}", entry.path)) for entry in ENTRIES}
    told |= {(entry.method, entry.path) for entry in ENTRIES}
    had = {("POST", route.path) for route in ROUTES}
    async with instance_in(tmp_path) as instance:
        for route in iter_route_contexts(routes_of(instance.services)):
            path = route.path or ""
            if not path.startswith(("/console", *_PAYMENTS)):
                had |= {(method, path) for method in route.methods or () if method != "HEAD"}
    assert len(had) > len(ROUTES)
    assert had - told == set()


@pytest.mark.anyio
async def test_who_may_call_is_as_it_says(tmp_path: Path) -> None:
    asked = [entry for entry in ENTRIES if not entry.path.startswith(_PAYMENTS) and entry.path not in _HOT]
    async with (
        instance_in(tmp_path) as instance,
        instance.client() as nobody,
        instance.bearer(instance.key_of("ann")) as ann,
    ):
        for entry in asked:
            path = re.sub(r"{\w+}", "0" * 32, entry.path)
            plain = await nobody.request(entry.method, path)
            assert (plain.status_code == 401) == (entry.who != ANYONE), f"{entry}: {plain.text}"
            own = await ann.request(entry.method, path, headers={"idempotency-key": "a"}, json={})
            error = own.json()["error"] if own.status_code == 403 else ""
            # Ollama's errors are one sentence.
            refused = (
                error.startswith("Only admins") if isinstance(error, str) else error["code"] == "role_forbids"
            )
            assert refused == (entry.who in (ADMINS, OPERATORS)), f"{entry}: {own.text}"


def routes_of(services: Services) -> list[BaseRoute]:
    """Those of the app inside of the bound on bodies."""
    bounded = create_web(services, Target("127.0.0.1", 1))
    assert isinstance(bounded, BoundedBodies)
    app = bounded._app
    assert isinstance(app, FastAPI)
    return list(app.routes)


def test_the_three_ranks_are_told_apart() -> None:
    by_call = {f"{entry.method} {entry.path}": entry.who for entry in ENTRIES}
    assert by_call["GET /admin/cluster"] == OPERATORS
    assert by_call["GET /admin/keys"] == ADMINS
    assert by_call["GET /accounting/v1/balance"] == KEY
    assert by_call["GET /healthz"] == ANYONE
