"""A gateway that takes payments of a fake Stripe, both on real time, asked in process."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import SecretStr

from accounting import chart
from accounting.money import NANO_PER_USD
from gateway.billing.payments.payments_service import PaymentsService
from gateway.settings import PaymentsSettings
from tests.fakes.stripe import paying
from tests.fakes.stripe.server import ACCOUNT_SECRET, API_KEY, CONNECT_SECRET, StripeServer
from tests.fakes.stripe.webhooks import sign
from tests.gateway.api.conftest import Serve, Served
from tests.gateways import PATIENCE_S

USD = NANO_PER_USD
_PATHS = {"account": "/accounting/v1/webhooks/stripe", "connect": "/accounting/v1/webhooks/stripe-connect"}


@dataclass
class Shop:
    """The gateway, its Stripe, and what tests do with both often."""

    served: Served
    stripe: StripeServer

    @property
    def payments_service(self) -> PaymentsService:
        payments_service = self.served.services.payments_service
        assert payments_service
        return payments_service

    def of(self, user_id: str) -> httpx.AsyncClient:
        """A client of a user of organization home."""
        return self.served.bearer(self.served.key_of(user_id))

    async def settle(self) -> None:
        """Deliver every message of Stripe's, and wait until all are handled.

        The gateway's own thread works at the same time. A message on which both meet is tried again after a second.
        """
        async with asyncio.timeout(PATIENCE_S), self.served.client() as client:
            while True:
                batch, self.stripe.webhooks.waiting = self.stripe.webhooks.waiting, []
                for one in batch:
                    headers = {"Stripe-Signature": sign(one.body, one.endpoint.secret)}
                    answer = await client.post(_PATHS[one.endpoint.name], content=one.body, headers=headers)
                    assert answer.status_code == 200, answer.text
                await asyncio.to_thread(self.payments_service.keeper.look)
                if not batch and not await asyncio.to_thread(
                    self.payments_service.payments.worker.count, "waiting"
                ):
                    return
                await asyncio.sleep(0.01)

    async def pay(self, topup_id: str) -> None:
        """On Stripe's page; what Stripe tells of it waits until `settle`."""
        topup = await asyncio.to_thread(self.payments_service.payments.topups.find, topup_id)
        with self.stripe.lock:
            paying.pay_session(self.stripe.state, topup.session_id or "")

    async def buy(self, client: httpx.AsyncClient, amount: str = "25.00", **fields: Any) -> str:
        """A top-up, paid and booked; its id."""
        opened = await post(client, "/topups", amount=amount, **fields)
        assert opened.status_code == 200, opened.text
        topup_id: str = opened.json()["id"]
        await self.pay(topup_id)
        await self.settle()
        return topup_id

    async def standing(self) -> dict[str, int]:
        """What stands on every account."""
        from accounting.ledger.balances import balances

        found = await self.served.services.ledger.look(lambda session: balances(session, limit=1_000))
        return {each.code: each.posted_nano for each in found}

    async def paid(self, user_id: str) -> int:
        return (await self.standing()).get(chart.user_paid(user_id), 0)

    async def check(self) -> None:
        """The ledger is sound, and agrees with Stripe to the cent."""
        async with self.served.machine as machine:
            found = (await post(machine, "/payments/reconcile")).json()
        assert (found["unmatched_count"], found["waiting_count"], found["difference"]) == (0, 0, "0.00"), found
        assert await self.served.services.ledger.findings(deep=True) == []


async def post(
    client: httpx.AsyncClient, path: str, key: str | None = None, *, verb: str = "POST", **body: Any
) -> httpx.Response:
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    return await client.request(verb, f"/accounting/v1{path}", json=body, headers=headers)


@asynccontextmanager
async def open_shop(serve: Serve, dsn: str | None = None, **settings: Any) -> AsyncIterator[Shop]:
    stripe = StripeServer()
    stripe.start()
    try:
        payments = PaymentsSettings(
            secret_key=SecretStr(API_KEY),
            webhook_secrets=(SecretStr("whsec_old"), SecretStr(ACCOUNT_SECRET)),
            connect_webhook_secrets=(SecretStr(CONNECT_SECRET),),
            base_url=stripe.url,
            grace_h=0,
            tick_s=300,
            **{"pool_rest_days": 0} | settings,
        )
        async with serve(dsn, payments) as served:
            shop = Shop(served, stripe)
            async with asyncio.timeout(PATIENCE_S):
                # The first round compares Stripe with the ledger. It must not meet a payment that is not told yet.
                while not shop.payments_service.keeper.state.reconciliation.at_ns:
                    await asyncio.sleep(0.01)
            yield shop
    finally:
        stripe.stop()
