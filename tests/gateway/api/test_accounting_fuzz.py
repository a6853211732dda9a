"""/accounting/v1 against whatever comes: nothing is a fault of ours, and the ledger stays sound."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.gateway.api.conftest import Serve
from tests.gateway.api.shops import Shop, open_shop
from tests.gateway.api.test_admin_fuzz import values

KNOWN = (
    "home",
    "owner",
    "ann",
    "user:ann",
    "team:home/x",
    "all",
    "day",
    "month",
    "cloud",
    "5.00",
    "25.00",
    "0.5",
    "",
)
FIELDS = ("user", "organization", "amount", "reason", "expires", "scope", "span", "model", "request_id", "topup")
MORE = ("below", "save_method", "why", "provider_credits", "x")
_ENDS = {"expires": "2027-01-01T00:00:00Z", "scope": "cloud"}
WRITES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/credits"): {"user": "ann", "amount": "5.00", "reason": "x"},
    ("POST", "/credits/promo"): {"user": "ann", "amount": "5.00", "reason": "x", **_ENDS},
    ("POST", "/credits/pool"): {"amount": "0.5"},
    ("POST", "/credits/pool/return"): {"organization": "home", "user": "ann", "amount": "0.5"},
    ("POST", "/refunds/usage"): {"request_id": "r", "amount": "0.5", "reason": "x"},
    ("POST", "/refunds"): {"topup": "t", "amount": "5.00"},
    ("POST", "/topups"): {"amount": "25.00", "save_method": True},
    ("PUT", "/topups/auto"): {"below": "5.00", "amount": "25.00"},
    ("POST", "/payouts"): {"amount": "25.00"},
    ("POST", "/payouts/{}/retry"): {},
    ("POST", "/sellers/onboard"): {},
    ("PUT", "/budgets"): {"scope": "user:ann", "span": "day", "amount": "5.00"},
    ("PUT", "/payments/frozen/{}"): {"why": None},
    ("POST", "/webhooks/stripe"): {},
}
"""Every route that writes, with a body that is right."""
READS = (
    ("GET", "/balance?user={}"),
    ("GET", "/balance?organization={}"),
    ("GET", "/transactions?user={}&limit=3"),
    ("GET", "/transactions?before={}"),
    ("GET", "/usage?by={}"),
    ("GET", "/usage?scope={}&format=csv"),
    ("GET", "/usage?since={}"),
    ("GET", "/budgets?scope={}"),
    ("DELETE", "/budgets?scope={}&span=day"),
    ("DELETE", "/topups/auto"),
    ("GET", "/topups?before={}"),
    ("GET", "/refunds?user={}"),
    ("GET", "/payouts/{}"),
)

texts = st.sampled_from(KNOWN) | st.text(max_size=20)
changes = st.dictionaries(st.sampled_from(FIELDS + MORE), texts | values, max_size=2) | values
keys = st.sampled_from(("a", "b", "c", "d")) | st.text("!~aZ09é ", max_size=5) | st.none()


def test_nothing_that_is_sent_is_a_fault_of_ours(serve: Serve, dsn: str) -> None:
    with asyncio.Runner() as runner:
        opening = open_shop(serve, dsn)
        shop = runner.run(opening.__aenter__())
        clients = (shop.served.machine, shop.of("ann"))
        try:

            @settings(max_examples=examples(25, 200), suppress_health_check=list(HealthCheck))
            @given(st.sampled_from(clients), st.sampled_from((*WRITES, *READS)), texts, changes, keys)
            def check(
                client: httpx.AsyncClient, route: tuple[str, str], name: str, change: Any, key: str | None
            ) -> None:
                body = WRITES.get(route, {}) | change if isinstance(change, dict) else change
                answer = runner.run(_asked(client, route, name, body, key))
                assert answer.status_code < 500, answer.text
                if answer.status_code >= 400:
                    assert answer.json()["error"]["message"]

            check()
            runner.run(_check_ledger(shop))
        finally:
            for client in clients:
                runner.run(client.aclose())
            runner.run(opening.__aexit__(None, None, None))


async def _asked(
    client: httpx.AsyncClient, route: tuple[str, str], name: str, body: Any, key: str | None
) -> httpx.Response:
    method, path = route
    headers = [(b"content-type", b"application/json")]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    content = json.dumps(body) if route in WRITES else None
    return await client.request(
        method, f"/accounting/v1{path.format(quote(name, safe=''))}", content=content, headers=headers
    )


async def _check_ledger(shop: Shop) -> None:
    assert await shop.served.services.ledger.findings(deep=True) == []
    assert (await shop.standing()).get("suspense", 0) == 0
