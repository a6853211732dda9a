"""Whatever is sent in place of an amount or a key: a 4xx that names the field, and nothing is booked or asked."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway.api.conftest import Serve
from tests.gateway.api.shops import Shop, open_shop

pytestmark = pytest.mark.anyio

BODIES: dict[tuple[str, str, str], dict[str, Any]] = {
    ("ann", "POST", "/topups"): {"amount": "25.00"},
    ("ann", "PUT", "/topups/auto"): {"below": "5.00", "amount": "25.00"},
    ("ann", "POST", "/payouts"): {"amount": "25.00"},
    ("ann", "POST", "/credits/pool"): {"amount": "1.00"},
    ("machine", "POST", "/refunds"): {"topup": "t", "amount": "5.00"},
    ("machine", "POST", "/refunds/usage"): {"request_id": "r", "amount": "5.00", "reason": "x"},
    ("machine", "POST", "/credits"): {"user": "ann", "amount": "5.00", "reason": "x"},
    ("machine", "POST", "/credits/promo"): {
        "user": "ann",
        "amount": "5.00",
        "expires": "2027-01-01T00:00:00Z",
        "reason": "x",
    },
    ("machine", "POST", "/credits/pool/return"): {"organization": "home", "user": "ann", "amount": "5.00"},
    ("machine", "PUT", "/budgets"): {"scope": "user:ann", "span": "day", "amount": "5.00"},
}
"""What is right of every route that takes an amount, but for what it is about."""

AMOUNTS: tuple[str, ...] = (
    "5",
    "5.0",
    "-5",
    "true",
    "null",
    "[]",
    "{}",
    "NaN",
    "Infinity",
    "1e400",
    '"-5.00"',
    '"+5.00"',
    '"5.0000000001"',
    '"9999999999"',
    '"' + "9" * 400 + '"',
    '"1e1"',
    '"NaN"',
    '"Infinity"',
    '"٥.00"',
    '"５.00"',
    '"5_0"',
    '" 5.00"',
    '"5,00"',
    '"0x5"',
    '"$5.00"',
    '"5.00 EUR"',
    '""',
    '"5.00\\u0000"',
)
# A budget of nothing is one; of nothing else zero is an amount.
ZERO = '"0.00"'
KEYS: tuple[tuple[str, str] | tuple[()], ...] = (
    (),
    ("Idempotency-Key", ""),
    ("Idempotency-Key", " "),
    ("Idempotency-Key", "a b"),
    ("Idempotency-Key", "x" * 201),
    ("Idempotency-Key", "kl\xe9"),
)


@pytest.fixture
async def shop(serve: Serve) -> AsyncIterator[Shop]:
    async with open_shop(serve) as shop:
        yield shop


async def test_amounts_that_are_none_are_refused_by_the_name_of_their_field(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.served.machine as machine:
        await shop.buy(ann, save_method=True)
        before, asked = await shop.standing(), len(shop.stripe.calls)
        for (who, verb, path), body in BODIES.items():
            client = ann if who == "ann" else machine
            wrong = AMOUNTS if path in ("/budgets", "/topups/auto") else (*AMOUNTS, ZERO)
            for number, text in enumerate(wrong):
                sent = json.dumps(body | {"amount": "AMOUNT"}).replace('"AMOUNT"', text)
                if path == "/refunds/usage" and text == "null":
                    continue  # All of it.
                headers = {"Idempotency-Key": f"{path}{number}", "content-type": "application/json"}
                answer = await client.request(
                    verb, f"/accounting/v1{path}", content=sent.encode(), headers=headers
                )
                found = (answer.status_code, answer.json()["error"]["param"])
                assert "Value error" not in answer.text, "a library's words"
                # That there is no account to be paid on is said of zero, too.
                assert found in ((400, "amount"), (404, None) if text == ZERO else ()), (path, text, answer.text)
            for field, value in (("currency", "eur"), ("amount_nano", 5)):
                answer = await client.request(
                    verb,
                    f"/accounting/v1{path}",
                    json=body | {field: value},
                    headers={"Idempotency-Key": f"{path}{field}"},
                )
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), answer.text
        assert await shop.standing() == before
        assert len(shop.stripe.calls) == asked
        await shop.check()


async def test_every_route_that_writes_wants_one_key_that_can_be_kept(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.served.machine as machine:
        routes = [*BODIES, ("ann", "POST", "/sellers/onboard"), ("machine", "POST", "/payments/reconcile")]
        for who, verb, path in routes:
            client = ann if who == "ann" else machine
            for key in KEYS:
                answer = await client.request(
                    verb,
                    f"/accounting/v1{path}",
                    json=BODIES.get((who, verb, path), {}),
                    headers=[(key[0].encode(), key[1].encode("latin-1"))] if key else [],
                )
                assert answer.status_code == 400, (path, key, answer.text)
                assert answer.json()["error"]["param"] == "Idempotency-Key"
        twice = await ann.post(
            "/accounting/v1/topups",
            json={"amount": "25.00"},
            headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
        )
        assert twice.status_code == 400
        assert await shop.standing() == {}
        assert shop.stripe.calls == []
