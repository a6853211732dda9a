"""Money's whole way through a real gateway: paid to Stripe, spent at a provider, given back; sums agree."""

import contextlib
import json
import signal
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from accounting.money import format_usd, parse_usd
from runtime.data_folder import ADMIN_HEADER, DataFolder
from tests.fakes import openai_provider as provider
from tests.fakes.stripe import paying
from tests.fakes.stripe.server import ACCOUNT_SECRET, API_KEY, StripeServer
from tests.fakes.stripe.webhooks import Endpoint
from tests.gateways import PATIENCE_S, Gateway, running_gateway, until


@dataclass
class Market:
    """A gateway with a cloud model and payments; Stripe's messages come over HTTP."""

    gateway: Gateway
    stripe: StripeServer
    api_key: str

    @property
    def ann(self) -> httpx.Client:
        return self.gateway.http(self.api_key)

    @property
    def machine(self) -> httpx.Client:
        running = DataFolder(self.gateway.folder).read_running()
        assert running
        client = httpx.Client(
            base_url=self.gateway.root,
            headers={ADMIN_HEADER: running["admin_token"]},
            timeout=PATIENCE_S,
            trust_env=False,
        )
        self.gateway.clients.append(client)
        return client

    def post(self, client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
        answer = client.post(f"/accounting/v1{path}", json=body, headers={"Idempotency-Key": uuid.uuid4().hex})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def get(self, client: httpx.Client, path: str, **params: Any) -> Any:
        return client.get(f"/accounting/v1{path}", params=params).raise_for_status().json()

    def available(self) -> str:
        return str(self.get(self.ann, "/balance")["available"])

    def deliver(self) -> None:
        """All of Stripe's messages, until the gateway has taken each."""
        with self.stripe.lock:
            self.stripe.webhooks.deliver(self._deliver)
        assert not self.stripe.webhooks.waiting

    def _deliver(self, endpoint: Endpoint, body: bytes, signature: str) -> int:
        path = "stripe" if endpoint.name == "account" else "stripe-connect"
        request = urllib.request.Request(
            f"{self.gateway.root}/accounting/v1/webhooks/{path}", body, {"Stripe-Signature": signature}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@contextmanager
def open_market(folder: Path) -> Iterator[Market]:
    with open_stripe_and_settings(folder) as (stripe, settings), start(folder, settings) as gateway:
        gateway.cli("users", "add", "ann")
        made = gateway.cli("key", "create", "test", "--user", "ann", "--lanes", "cloud", "--json")
        yield Market(gateway, stripe, json.loads(made)["api_key"])


def start(folder: Path, settings: dict[str, str]) -> AbstractContextManager[Gateway]:
    return running_gateway(folder / "data", model=None, nodes=0, settings=settings)


@contextmanager
def open_stripe_and_settings(folder: Path) -> Iterator[tuple[StripeServer, dict[str, str]]]:
    """A fake Stripe and a fake provider, and what a gateway is told of both."""
    keys = folder / "cloud.keys"
    keys.write_text(f"OPENAI_KEY={provider.KEY}\n")
    keys.chmod(0o600)
    stripe = StripeServer()
    stripe.start()
    try:
        with provider.openai_provider() as cloud:
            model = {
                "model": "openai/fake",
                "key": "OPENAI_KEY",
                "base_url": f"{cloud.origin}/v1",
                "prompt_usd_per_mtok": "3000",
                "completion_usd_per_mtok": "15000",
                "max_output_tokens": 100,
            }
            settings = {
                "CLOUD__MODELS": json.dumps({"gpt": model}),
                "CLOUD__KEYS_FILE": str(keys),
                "PAYMENTS__SECRET_KEY": API_KEY,
                "PAYMENTS__WEBHOOK_SECRETS": json.dumps(["whsec_old", ACCOUNT_SECRET]),
                "PAYMENTS__BASE_URL": stripe.url,
                "PAYMENTS__TICK_S": "0.2",
                "PAYMENTS__GRACE_H": "0",
            }
            yield stripe, settings
    finally:
        stripe.stop()


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    with open_market(tmp_path_factory.mktemp("market")) as market:
        yield market


def test_money_goes_in_is_spent_comes_back_and_every_sum_agrees(market: Market) -> None:
    topup = market.post(market.ann, "/topups", amount="25.00")
    assert (topup["status"], market.available()) == ("open", "0.00")
    with market.stripe.lock:
        session = next(market.stripe.state.all("checkout.session"))
        paying.pay_session(market.stripe.state, session["id"])
    market.deliver()
    until(lambda: market.available() == "25.00" or None)

    client = market.gateway.openai(market.api_key)
    question: Any = [{"role": "user", "content": "What turns all night?"}]
    asked = client.chat.completions.with_raw_response.create(model="gpt", messages=question, max_tokens=50)
    assert asked.headers["x-millrace-lane"] == "cloud"
    request_id = asked.headers["x-request-id"]
    charge_nano = market.gateway.record(request_id)["charge_nano"]
    assert charge_nano > 0
    left = format_usd(parse_usd("25.00") - charge_nano)
    until(lambda: market.available() == left or None)
    used = until(lambda: market.get(market.ann, "/usage", by="model,lane")["data"] or None)
    assert [(row["model"], row["lane"], row["charge"]) for row in used] == [
        ("gpt", "cloud", format_usd(charge_nano))
    ]

    market.post(market.machine, "/refunds/usage", request_id=request_id, reason="it was wrong")
    assert market.available() == "25.00"

    refund = market.post(market.machine, "/refunds", topup=topup["id"], amount="5.00")
    assert market.available() == "20.00"
    with market.stripe.lock:
        made = next(market.stripe.state.all("refund"))
        paying.end_refund(market.stripe.state, made["id"], succeeds=True)
    market.deliver()
    until(lambda: market.get(market.ann, f"/refunds/{refund['id']}")["status"] == "succeeded" or None)

    found = market.post(market.machine, "/payments/reconcile")
    assert (found["unmatched"], found["waiting"], found["difference"]) == ([], [], "0.00")
    status = json.loads(
        market.gateway.cli(
            "payments",
            "status",
            "--json",
            environment={"MILLRACE_PAYMENTS__SECRET_KEY": API_KEY, "MILLRACE_PAYMENTS__WEBHOOK_SECRETS": '["x"]'},
        )
    )
    assert (status["mode"], status["failed"], status["reconciliation"]["unmatched_count"]) == ("test", 0, 0)
    assert json.loads(market.gateway.cli("usage", "--by", "user", "--json"))[0]["user"] == "ann"
    metrics = market.machine.get("/metrics").text
    assert "millrace_payments_unmatched 0.0" in metrics
    kinds = {line["kind"] for line in market.get(market.ann, "/transactions", limit=100)["data"]}
    assert {"topup", "usage_refund", "topup_refund"} <= kinds
    assert any("TEST MODE" in line for line in market.gateway.log)


def test_whoever_is_frozen_is_told_so_before_anything_is_spent(market: Market) -> None:
    given = market.post(market.machine, "/credits", user="ann", amount="5.00", reason="for the test")
    assert given["to"] == "user:ann"
    question: Any = [{"role": "user", "content": "What turns all night?"}]
    for why, refused in (("a dispute", True), (None, False)):
        key = {"Idempotency-Key": uuid.uuid4().hex}
        done = market.machine.put("/accounting/v1/payments/frozen/ann", json={"why": why}, headers=key)
        assert done.status_code == 200, done.text
        body = {"model": "gpt", "messages": question, "max_tokens": 5}
        answer = market.ann.post("/v1/chat/completions", json=body)
        assert (answer.status_code == 403) is refused, answer.text
        if refused:
            assert answer.json()["error"]["code"] == "payments_frozen"


@pytest.mark.slow
def test_a_refund_that_a_kill_9_cut_off_is_made_once(tmp_path: Path) -> None:
    """Killed while Stripe works on it, started again, and asked again under the same key."""
    with open_stripe_and_settings(tmp_path) as (stripe, settings):
        wish = {"topup": "", "amount": "5.00"}
        with start(tmp_path, settings) as gateway:
            gateway.cli("users", "add", "ann")
            made = gateway.cli("key", "create", "test", "--user", "ann", "--lanes", "cloud", "--json")
            api_key = json.loads(made)["api_key"]
            market = Market(gateway, stripe, api_key)
            wish["topup"] = market.post(market.ann, "/topups", amount="25.00")["id"]
            with stripe.lock:
                paying.pay_session(stripe.state, next(stripe.state.all("checkout.session"))["id"])
            market.deliver()
            until(lambda: market.available() == "25.00" or None)
            stripe.faults.order("slow", "refunds", 1)
            cut = threading.Thread(target=_ask_in_vain, args=(market.machine, wish))
            cut.start()
            until(lambda: any(call.path == "refunds" for call in stripe.calls) or None)
            gateway.stop(signal.SIGKILL)
            cut.join(PATIENCE_S)
            assert not cut.is_alive()
        stripe.released.set()
        with start(tmp_path, settings) as gateway:
            market = Market(gateway, stripe, api_key)
            answer = until(lambda: _asked_again(market.machine, wish))
            assert (answer["status"], answer["amount"]) == ("sent", "5.00")
            assert len(list(stripe.state.all("refund"))) == 1
            assert market.available() == "20.00"
            with stripe.lock:
                paying.end_refund(stripe.state, next(stripe.state.all("refund"))["id"], succeeds=True)
            market.deliver()
            path = f"/refunds/{answer['id']}"
            until(lambda: market.get(market.machine, path)["status"] == "succeeded" or None)
            found = market.post(market.machine, "/payments/reconcile")
            assert (found["unmatched_count"], found["difference"]) == (0, "0.00")


def _ask_in_vain(machine: httpx.Client, wish: dict[str, str]) -> None:
    with contextlib.suppress(httpx.HTTPError):
        machine.post("/accounting/v1/refunds", json=wish, headers={"Idempotency-Key": "once"})


def _asked_again(machine: httpx.Client, wish: dict[str, str]) -> dict[str, Any] | None:
    """The answer, once Stripe has made up its mind about the call that was cut off."""
    answer = machine.post("/accounting/v1/refunds", json=wish, headers={"Idempotency-Key": "once"})
    assert answer.status_code in (200, 503), answer.text
    found: dict[str, Any] = answer.json()
    return found if answer.status_code == 200 else None
