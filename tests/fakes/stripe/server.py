"""The HTTP server of the fake: authentication, idempotency, faults and routes, in a thread of its own."""

import asyncio
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web

from tests.fakes.stripe import connect, forms, paying, reading
from tests.fakes.stripe.errors import Refused
from tests.fakes.stripe.faults import Fault, Faults
from tests.fakes.stripe.idempotency import Answer, Keys
from tests.fakes.stripe.state import Object, State
from tests.fakes.stripe.webhooks import Endpoint, Webhooks

OWN_ACCOUNT = "acct_own"
API_KEY = "sk_test_millrace"
ACCOUNT_SECRET = "whsec_account"
CONNECT_SECRET = "whsec_connect"
_STEP_TIMEOUT_S = 60.0
_LOOK_S = 0.01

_Made: TypeAlias = Callable[[State, Object, str | None, str], Object]

_KINDS = {
    "customers": "customer",
    "payment_methods": "payment_method",
    "payment_intents": "payment_intent",
    "setup_intents": "setup_intent",
    "charges": "charge",
    "refunds": "refund",
    "disputes": "dispute",
    "accounts": "account",
    "transfers": "transfer",
    "payouts": "payout",
    "balance_transactions": "balance_transaction",
    "events": "event",
    "checkout/sessions": "checkout.session",
}
_MAKERS: tuple[tuple[str, _Made], ...] = (
    ("customers", lambda state, form, owner, _: paying.create_customer(state, form)),
    ("checkout/sessions", lambda state, form, owner, _: paying.create_session(state, form)),
    ("payment_intents", lambda state, form, owner, _: paying.create_intent(state, form)),
    ("refunds", lambda state, form, owner, _: paying.create_refund(state, form)),
    ("accounts", lambda state, form, owner, _: connect.create_account(state, form)),
    ("account_links", lambda state, form, owner, _: connect.create_account_link(state, form)),
    ("transfers", lambda state, form, owner, _: connect.create_transfer(state, form)),
    ("transfers/([^/]+)/reversals", lambda state, form, owner, name: connect.reverse_transfer(state, name, form)),
    ("payouts", lambda state, form, owner, _: connect.create_payout(state, form, owner)),
)


@dataclass
class Call:
    """One POST as it arrived, for tests that count keys."""

    path: str
    key: str
    account: str | None


class StripeServer:
    """Serves on 127.0.0.1 from a thread between `start` and `stop`; tests act on `state` through `act`."""

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self.state = State(clock_s)
        self.faults = Faults()
        endpoints = {name: Endpoint(name, secret) for name, secret in _SECRETS.items()}
        self.webhooks = Webhooks(endpoints, clock_s)
        self.state.listeners.append(self.webhooks.hear)
        self.calls: list[Call] = []
        self.lock = threading.RLock()
        self.released = threading.Event()
        self.port = 0
        self._keys = Keys()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake stripe", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_STEP_TIMEOUT_S)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(_STEP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STEP_TIMEOUT_S)
        self._loop.close()

    async def _wait_for_release(self) -> None:
        async with asyncio.timeout(_STEP_TIMEOUT_S):
            while not self.released.is_set():
                await asyncio.sleep(_LOOK_S)

    async def _listen(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/v1/{path:.+}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        owner = request.headers.get("Stripe-Account")
        headers = {"Request-Id": f"req_{len(self.calls)}"}
        try:
            if request.headers.get("Authorization") != f"Bearer {API_KEY}":
                raise Refused(401, "invalid_request_error", "Invalid API Key provided")
            if request.method == "GET":
                form = forms.decode(request.query_string)
                with self.lock:
                    body = self._read(path, form, owner)
                return web.json_response(body, headers=headers)
            answer, replayed = await self._change(request, path, owner)
        except Refused as refused:
            return web.json_response(refused.body, status=refused.status, headers=headers)
        except ConnectionAbortedError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if replayed:
            headers["Idempotent-Replayed"] = "true"
        return web.json_response(answer.body, status=answer.status, headers=headers)

    async def _change(self, request: web.Request, path: str, owner: str | None) -> tuple[Answer, bool]:
        body, key = await request.read(), request.headers.get("Idempotency-Key", "")
        assert len(key) <= 255
        self.calls.append(Call(path, key, owner))
        fault = self.faults.next(path)
        if fault == "timeout_before":
            raise ConnectionAbortedError
        if fault == "rate_limited":
            raise Refused(429, "rate_limit_error", "Too many requests", "rate_limit")
        kept = self._keys.begin(owner or "", key, path, body) if key else None
        if kept:
            if fault == "timeout_after":
                raise ConnectionAbortedError
            return kept, True
        if fault == "slow":
            await self._wait_for_release()
        answer, keeps = self._effect(path, body, owner, fault)
        if key:
            self._keys.end(owner or "", key, answer if keeps else None)
        if fault == "timeout_after":
            raise ConnectionAbortedError
        return answer, False

    def _effect(self, path: str, body: bytes, owner: str | None, fault: Fault | None) -> tuple[Answer, bool]:
        """Do what is asked; False with it where the request never began, so that its key stays free."""
        failed = Answer(500, {"error": {"type": "api_error", "message": "Something went wrong on our end."}})
        if fault == "error_before":
            return failed, True
        form = forms.decode(body.decode())
        try:
            with self.lock:
                made = reading.shown(self.state, self._make(path, form, owner), form.get("expand", []))
        except Refused as refused:
            began = not str(refused.body["error"].get("code", "")).startswith("parameter_")
            return Answer(refused.status, refused.body), began
        return (failed if fault == "error_after" else Answer(200, made)), True

    def _make(self, path: str, form: Object, owner: str | None) -> Object:
        for pattern, make in _MAKERS:
            if match := re.fullmatch(pattern, path):
                return make(self.state, form, owner, match[1] if match.re.groups else "")
        raise Refused(404, "invalid_request_error", f"Unrecognized request URL (POST: /v1/{path}).")

    def _read(self, path: str, form: Object, owner: str | None) -> Object:
        expand = form.get("expand", [])
        if path == "balance":
            money = [{"amount": self.state.balance(owner), "currency": "usd"}]
            return {"object": "balance", "available": money, "pending": [], "livemode": False}
        if path == "account":
            return {"id": OWN_ACCOUNT, "object": "account"}
        if path in _KINDS:
            listed = reading.page(self.state, _KINDS[path], form, owner, f"/v1/{path}")
            return reading.shown(self.state, listed, expand)
        resource, _, object_id = path.rpartition("/")
        if resource in _KINDS:
            return reading.shown(self.state, self.state.get(_KINDS[resource], object_id, owner), expand)
        raise Refused(404, "invalid_request_error", f"Unrecognized request URL (GET: /v1/{path}).")


_SECRETS = {"account": ACCOUNT_SECRET, "connect": CONNECT_SECRET}
