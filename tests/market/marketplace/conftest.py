"""A gateway that is a marketplace, with users who buy and one who sells; requests are made in process."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from accounting.metering.tokenizers import Pinned
from accounting.money import NANO_PER_USD
from cluster.trust.addresses import Target
from gateway.app import create_app, open_services
from gateway.identity.key_rows import KeyTerms
from gateway.settings import DatabaseSettings, MeteringSettings, Settings
from gateway.settings.metering import TokenizerFile
from market.marketplace.marketplace import Marketplace
from market.marketplace.sellers import proof_message
from market.protocol.records.envelope import Record, open_record
from market.settings.marketplace import MarketplaceSettings
from tests.accounting.tokenizer import make_tokenizer
from tests.databases import Kind, prepared
from tests.gateway.api.conftest import Served
from tests.market.parties import id_of, key_of

USD = NANO_PER_USD


@dataclass
class Hall:
    """The gateway that is the marketplace, and what tests ask of it often."""

    served: Served

    @property
    def marketplace(self) -> Marketplace:
        marketplace = self.served.services.marketplace
        assert marketplace
        return marketplace

    def of(self, user_id: str, **terms: Any) -> httpx.AsyncClient:
        return self.served.bearer(self.served.key_of(user_id, **terms))

    def buying(self, user_id: str, **terms: Any) -> httpx.AsyncClient:
        """With a key for the market."""
        made = self.served.services.keys.issue(
            "buying", ("cluster", "market"), user_id=user_id, terms=KeyTerms(**terms)
        )
        return self.served.bearer(made.token)

    async def standing(self) -> dict[str, int]:
        """What stands on every account."""
        from accounting.ledger.balances import balances

        found = await self.served.services.ledger.look(lambda session: balances(session, limit=1_000))
        return {each.code: each.posted_nano for each in found}

    async def held(self, code: str) -> int:
        from accounting.ledger.balances import balance

        return (await self.served.services.ledger.look(lambda session: balance(session, code))).held_nano

    async def check(self) -> None:
        """Check that the ledger is sound."""
        assert await self.served.services.ledger.findings(deep=True) == []

    async def credit(self, user_id: str, amount_nano: int) -> None:
        await self.served.services.ledger.credit(uuid.uuid4().hex, user_id, amount_nano, "test")

    async def register(self, user_id: str, name: str) -> httpx.Response:
        """Let the identity of this name sell for a user."""
        proof = key_of(name).sign(proof_message(self.marketplace.context.speaker.id, user_id)).hex()
        async with self.of(user_id) as client:
            return await post(
                client, "/sellers", identity=id_of(name), key=key_of(name).public_key.hex(), proof=proof
            )

    async def allocate(
        self, user_id: str, limit: str, *, buyer: str = "buyer", seller: str = "seller", **fields: Any
    ) -> httpx.Response:
        async with self.buying(user_id) as client:
            return await post(
                client, "/allocations", buyer=id_of(buyer), seller=id_of(seller), limit=limit, **fields
            )

    async def allocated(self, user_id: str, limit: str, **fields: Any) -> Record:
        answer = await self.allocate(user_id, limit, **fields)
        assert answer.status_code == 200, answer.text
        return open_record(answer.json()["allocation"].encode())

    async def settle(self, allocation: Record, records: list[Record], *statements: Record) -> httpx.Response:
        body: dict[str, Any] = {
            "allocation": allocation.raw.decode(),
            "records": [record.raw.decode() for record in records],
            "statements": [record.raw.decode() for record in statements],
        }
        async with self.served.client() as client:
            return await client.post("/market/v1/settlements", json=body)


async def post(client: httpx.AsyncClient, path: str, under: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": under or uuid.uuid4().hex}
    return await client.post(f"/market/v1{path}", json=body, headers=headers)


@asynccontextmanager
async def open_hall(
    folder: Path, dsn: str | None = None, tokenizer: Pinned | None = None, **terms: Any
) -> AsyncIterator[Hall]:
    """`tokenizer` counts in disputes."""
    named = {"m": TokenizerFile.model_validate(tokenizer, from_attributes=True)} if tokenizer else {}
    settings = Settings(
        data_dir=folder,
        database=DatabaseSettings(dsn=dsn),
        metering=MeteringSettings(tokenizers=named),
        marketplace=MarketplaceSettings(enabled=True, **{"tick_s": 300} | terms),
    )
    async with open_services(settings, prepared(folder)) as services:
        hall = Hall(Served(services, create_app(services, Target("127.0.0.1", 1))))
        users = services.directory.users
        for user_id in ("ann", "bob", "sam"):
            users.add(user_id)
        yield hall


@pytest.fixture
def kind() -> Kind:
    """What is the same on either database is tried on one: the desks behind it are tried on both."""
    return "sqlite"


@pytest.fixture
async def hall(tmp_path: Path, dsn: str) -> AsyncIterator[Hall]:
    """Ann has 10 USD, Sam sells as `seller`."""
    async with open_hall(tmp_path, dsn, make_tokenizer(tmp_path)) as hall:
        await hall.credit("ann", 10 * USD)
        registered = await hall.register("sam", "seller")
        assert registered.status_code == 200, registered.text
        yield hall
