"""/accounting/v1 over payments and a fake Stripe: keys, amounts, who may what, and webhooks."""

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError

from accounting.errors import LedgerError
from gateway.api.accounting import payouts, topups, webhooks
from gateway.api.accounting.asking import Till
from gateway.api.authority import Authority, admitted
from gateway.database import open_engine
from gateway.errors import GatewayError
from gateway.identity.audit import Actor
from gateway.identity.caller import Caller
from gateway.web import _answer_error
from tests.accounting.books import Books
from tests.accounting.payments.house import USD, House
from tests.databases import Databases
from tests.fakes.stripe.server import ACCOUNT_SECRET
from tests.fakes.stripe.webhooks import sign

pytestmark = pytest.mark.anyio


@pytest.fixture
def house(databases: Databases) -> Iterator[House]:
    with databases.database("sqlite") as dsn:
        engine = open_engine(dsn)
        with Books(engine) as books, House(books, engine) as house:
            yield house
        engine.dispose()


async def _somebody(request: Request) -> Authority:
    """Whoever the header says, and the machine where it says nothing: who is let in is tested elsewhere."""
    user_id = request.headers.get("user")
    caller = Caller("key", "ml-", user_id, "lab", frozenset()) if user_id else None
    return Authority(SimpleNamespace(), Actor(f"person:{user_id}"), caller, None)  # type: ignore[arg-type]


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    for router in (topups.router, payouts.router, webhooks.router):
        app.include_router(router)
    for kind in (GatewayError, LedgerError, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    app.dependency_overrides[admitted] = _somebody
    app.state.till = Till(house.payments)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway/accounting/v1") as client:
        yield client


async def _post(client: httpx.AsyncClient, path: str, user: str, key: str, **body: Any) -> httpx.Response:
    headers = {"user": user, "Idempotency-Key": key} if user else {"Idempotency-Key": key}
    return await client.post(path, json=body, headers=headers)


async def test_a_top_up_is_priced_opened_paid_and_refunded(house: House, client: httpx.AsyncClient) -> None:
    priced = (await client.get("/topups/quote", params={"amount": "25.00"}, headers={"user": "ann"})).json()
    assert priced == {"credits": "25.00", "fee": "1.38", "total": "26.38", "mode": "test: no money moves"}
    opened = await _post(client, "/topups", "ann", "k1", amount="25.00")
    assert (opened.status_code, opened.json()["status"]) == (200, "open")
    assert (await _post(client, "/topups", "ann", "k1", amount="25.00")).json() == opened.json()
    other = await _post(client, "/topups", "ann", "k1", amount="10.00")
    assert (other.status_code, other.json()["error"]["param"]) == (409, "Idempotency-Key")
    topup = opened.json()["id"]
    assert (await client.get(f"/topups/{topup}", headers={"user": "bob"})).status_code == 404
    house.pay(house.payments.topups.find(topup).session_id or "")
    house.settle()
    assert (await client.get(f"/topups/{topup}", headers={"user": "ann"})).json()["status"] == "paid"
    assert (await _post(client, "/refunds", "ann", "r", topup=topup, amount="5.00")).status_code == 403
    refund = await _post(client, "/refunds", "", "r", topup=topup, amount="5.00")
    assert (refund.status_code, refund.json()["amount"]) == (200, "5.00")
    house.books.hold("spent", "ann", 18 * USD)
    assert (await _post(client, "/refunds", "", "r2", topup=topup, amount="5.00")).status_code == 402


WRONG: tuple[Any, ...] = (
    5,
    5.0,
    True,
    None,
    [],
    "5.001",
    "-5.00",
    "0.00",
    "7.00",
    "9" * 40,
    "1e1",
    "NaN",
    "٥.00",
    "5_0",
    " 5.00",
)


@pytest.mark.parametrize("amount", WRONG)
async def test_amounts_that_are_none_or_not_on_offer_are_refused(
    house: House, client: httpx.AsyncClient, amount: Any
) -> None:
    for path in ("/topups", "/payouts"):
        answer = await _post(client, path, "ann", "k", amount=amount)
        assert answer.status_code in (400, 404), answer.text
    assert house.made("checkout.session") == 0


@pytest.mark.parametrize("key", [None, "", " ", "a b", "x" * 201])
async def test_a_post_without_a_key_is_refused_by_name(client: httpx.AsyncClient, key: str | None) -> None:
    headers = {"user": "ann"} if key is None else {"user": "ann", "Idempotency-Key": key}
    for path in ("/topups", "/payouts", "/sellers/onboard"):
        answer = await client.post(path, json={"amount": "25.00"}, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_a_seller_is_onboarded_and_paid(house: House, client: httpx.AsyncClient) -> None:
    assert (await _post(client, "/payouts", "sam", "p", amount="20.00")).status_code == 404
    assert (await _post(client, "/sellers/onboard", "sam", "o")).json()["url"].startswith("https://")
    assert (await client.get("/sellers/me", headers={"user": "sam"})).json()["ready"] is False
    house.funds(100)
    house.seller("sam", 50 * USD)
    paid = await _post(client, "/payouts", "sam", "p", amount="20.00")
    assert (paid.json()["amount"], paid.json()["status"]) == ("20.00", "paying")
    house.stripe.faults.order("timeout_after", "transfers", 3)
    unknown = await _post(client, "/payouts", "sam", "p2", amount="10.00")
    assert (unknown.status_code, "retry-after" in unknown.headers) == (503, True)
    assert (await _post(client, "/payouts", "sam", "p2", amount="10.00")).json()["status"] == "paying"
    assert house.made("transfer") == 2


async def test_webhooks_need_no_key_but_stripes_signature(house: House, client: httpx.AsyncClient) -> None:
    house.payments.topups.open("t1", "ann", 25 * USD)
    house.pay(house.payments.topups.find("t1").session_id or "")
    body = house.stripe.webhooks.waiting[-1].body
    good = {"Stripe-Signature": sign(body, ACCOUNT_SECRET, at_s=house.books.now_ns / 1e9)}
    for path, content, headers in (
        ("/webhooks/stripe", body, {}),
        ("/webhooks/stripe", body + b" ", good),
        ("/webhooks/stripe-connect", body, good),
    ):
        refused = await client.post(path, content=content, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "webhook_refused")
    assert (await client.post("/webhooks/stripe", content=b"x" * 300_000, headers=good)).status_code == 413
    answers = [(await client.post("/webhooks/stripe", content=body, headers=good)).json() for _ in range(2)]
    assert answers == [{"received": True, "new": True}, {"received": True, "new": False}]
