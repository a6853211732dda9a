"""The gateway's own app over its real services, asked in process."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.trust.addresses import Target
from gateway.api.admin import HEADER
from gateway.app import Services, create_app, open_services
from gateway.identity.key_rows import KeyTerms
from gateway.settings import DatabaseSettings, IdentitySettings, PaymentsSettings, Settings
from tests.databases import prepared

ROOT = "http://gateway.test"


@dataclass
class Served:
    """A gateway's app, and clients for it."""

    services: Services
    app: Any

    def client(self, headers: dict[str, str] | None = None, address: str = "10.0.0.1") -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url=ROOT, headers=headers)

    @property
    def machine(self) -> httpx.AsyncClient:
        return self.client({HEADER: self.services.admin_token})

    def bearer(self, token: str, address: str = "10.0.0.1") -> httpx.AsyncClient:
        return self.client({"authorization": f"Bearer {token}"}, address)

    def key_of(self, user_id: str, **terms: Any) -> str:
        """A key of a user, with admin access if the user is an admin."""
        made = self.services.keys.issue(
            "test", ("cluster",), user_id=user_id, terms=KeyTerms(may_administer=True, **terms)
        )
        return made.token


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    @asynccontextmanager
    async def serve(
        dsn: str | None = None, payments: PaymentsSettings | None = None, **identity: Any
    ) -> AsyncIterator[Served]:
        settings = Settings(
            data_dir=tmp_path,
            identity=IdentitySettings(**identity),
            database=DatabaseSettings(dsn=dsn),
            payments=payments or PaymentsSettings(),
        )
        async with open_services(settings, prepared(tmp_path)) as services:
            yield Served(services, create_app(services, Target("127.0.0.1", 1)))

    return serve
