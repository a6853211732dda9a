"""/accounting/v1 over a gateway and a fake Stripe: keys, who may what, messages, answers given twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from accounting.ledger.health import BrokenRule
from accounting.payments.errors import PayerFrozen
from accounting.payments.tables import stripe_event_table
from accounting.rules.held import Payer
from gateway.billing.asked import AskedBefore, Claim
from gateway.billing.payments.factory import secret_key, terms_of
from gateway.billing.tables import idempotent_request_table
from gateway.settings import PaymentsSettings, Settings
from runtime.settings import SettingsInvalid
from tests.fakes.stripe import connect, paying
from tests.fakes.stripe.server import ACCOUNT_SECRET
from tests.fakes.stripe.webhooks import sign
from tests.gateway.api.conftest import Serve
from tests.gateway.api.shops import USD, Shop, open_shop, post

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(serve: Serve) -> AsyncIterator[Shop]:
    async with open_shop(serve) as shop:
        yield shop


async def get(client: httpx.AsyncClient, path: str, **params: str) -> httpx.Response:
    return await client.get(f"/accounting/v1{path}", params=params)


async def test_a_top_up_is_priced_opened_paid_and_refunded(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.of("bob") as bob, shop.served.machine as machine:
        priced = await get(ann, "/topups/quote", amount="25.00")
        expected = {"credits": "25.00", "fee": "1.38", "total": "26.38", "mode": "test: no money moves"}
        assert (priced.json(), priced.headers["x-millrace-payments"]) == (expected, "test")
        topup = await shop.buy(ann)
        assert await shop.paid("ann") == 25 * USD
        assert (await get(ann, f"/topups/{topup}")).json()["status"] == "paid"
        assert (await get(bob, f"/topups/{topup}")).status_code == 404
        assert (await get(machine, f"/topups/{topup}")).json()["user"] == "ann"
        assert [one["id"] for one in (await get(ann, "/topups")).json()["data"]] == [topup]
        assert (await get(bob, "/topups")).json()["data"] == []
        assert (await get(bob, "/topups", user="ann")).status_code == 403
        assert (await post(ann, "/refunds", topup=topup, amount="5.00")).status_code == 403
        refund = await post(machine, "/refunds", topup=topup, amount="5.00")
        assert (refund.status_code, refund.json()["amount"]) == (200, "5.00")
        too_much = await post(machine, "/refunds", topup=topup, amount="20.01")
        assert (too_much.status_code, too_much.json()["error"]["param"]) == (400, "amount")
        assert (await get(ann, f"/refunds/{refund.json()['id']}")).json()["topup"] == topup
        assert [one["status"] for one in (await get(ann, "/refunds")).json()["data"]] == ["sent"]
        found = (await get(machine, "/payments")).json()
        assert (found["mode"], found["waiting"], found["failed"]) == ("test: no money moves", 0, 0)
        assert (await get(ann, "/payments")).status_code == 403


async def test_what_was_answered_is_answered_again_byte_for_byte(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.of("bob") as bob:
        first = await post(ann, "/topups", "k1", amount="25.00")
        again = await post(ann, "/topups", "k1", amount="25.00")
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
        assert first.headers["x-millrace-payments"] == again.headers["x-millrace-payments"] == "test"
        for path, amount in (("/topups", "10.00"), ("/payouts", "25.00")):
            other = await post(ann, path, "k1", amount=amount)
            assert (other.status_code, other.json()["error"]["param"]) == (409, "Idempotency-Key")
        assert (await post(bob, "/topups", "k1", amount="10.00")).status_code == 200
        # What was refused before anything was done does not use the key up.
        assert (await post(ann, "/topups", "k2", amount="7.00")).status_code == 400
        assert (await post(ann, "/topups", "k2", amount="10.00")).status_code == 200
    assert len([call for call in shop.stripe.calls if call.path == "checkout/sessions"]) == 3


async def test_a_key_in_use_waits_and_one_whose_process_died_does_not(shop: Shop) -> None:
    shop.stripe.faults.order("slow", "checkout/sessions", 1)
    async with shop.of("ann") as ann:
        slow = asyncio.create_task(post(ann, "/topups", "k1", amount="25.00"))
        async with asyncio.timeout(30):
            while not any(call.path == "checkout/sessions" for call in shop.stripe.calls):
                await asyncio.sleep(0.01)
        meanwhile = await post(ann, "/topups", "k1", amount="25.00")
        assert (meanwhile.status_code, meanwhile.json()["error"]["code"]) == (409, "idempotency_key_in_use")
        assert 0 < int(meanwhile.headers["retry-after"]) <= 60
        shop.stripe.released.set()
        assert (await slow).status_code == 200
        assert (await post(ann, "/topups", "k1", amount="25.00")).content == (await slow).content
    now_ns = [10**18]
    asked = AskedBefore(shop.served.services.directory.write, lambda: now_ns[0])
    assert isinstance(asked.begin("user:ann", "dead", b"body"), Claim)
    now_ns[0] += 61 * 10**9
    assert isinstance(asked.begin("user:ann", "dead", b"body"), Claim)


async def test_a_crash_between_the_deed_and_its_answer_does_no_harm(shop: Shop) -> None:
    """Answers are lost as a kill -9 loses them, and everything is asked for once more."""

    def lose_answers() -> None:
        with shop.served.services.directory.write() as session, session.begin():
            session.execute(
                update(idempotent_request_table).values(status=None, response=None, claimed_until_ns=0)
            )

    async with shop.of("ann") as ann, shop.served.machine as machine:
        topup = await shop.buy(ann)
        wishes: list[tuple[httpx.AsyncClient, str, dict[str, str]]] = [
            (ann, "/topups", {"amount": "10.00"}),
            (ann, "/credits/pool", {"amount": "3.00"}),
            (machine, "/credits", {"user": "ann", "amount": "5.00", "reason": "x"}),
            (machine, "/refunds", {"topup": topup, "amount": "5.00"}),
        ]
        first = [await post(who, path, f"k{path}", **body) for who, path, body in wishes]
        assert [answer.status_code for answer in first] == [200] * len(wishes)
        before, made = await shop.standing(), len(shop.stripe.state.objects)
        await asyncio.to_thread(lose_answers)
        again = [await post(who, path, f"k{path}", **body) for who, path, body in wishes]
        assert [answer.json() for answer in again] == [answer.json() for answer in first]
        assert not any("idempotent-replayed" in answer.headers for answer in again)
        assert (await shop.standing(), len(shop.stripe.state.objects)) == (before, made)


async def test_a_message_that_was_given_up_is_tried_again_by_an_operator_alone(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.served.machine as machine:
        await shop.buy(ann)
        with shop.served.services.directory.write() as session, session.begin():
            session.execute(update(stripe_event_table).values(status="failed", reason="test"))
        failed = (await get(machine, "/payments")).json()["failures"][0]["id"]
        assert (await post(ann, f"/payments/messages/{failed}/retry")).status_code == 403
        assert (await post(machine, "/payments/messages/evt_none/retry")).status_code == 404
        assert (await post(machine, f"/payments/messages/{failed}/retry", "k1")).json()["status"] == "waiting"
        assert (await post(machine, f"/payments/messages/{failed}/retry", "k1")).status_code == 200


async def test_what_stripe_has_refused_stays_refused_under_its_key(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.served.machine as machine:
        topup = await shop.buy(ann)
        shop.stripe.state.get("charge", _charge(shop))["disputed"] = True
        refused = [await post(machine, "/refunds", "r1", topup=topup, amount="5.00") for _ in range(2)]
        assert [(one.status_code, one.json()["error"]["code"]) for one in refused] == [(400, "stripe_refused")] * 2
        assert refused[0].content == refused[1].content
    assert await shop.paid("ann") == 25 * USD


def _charge(shop: Shop) -> str:
    return next(name for name, made in shop.stripe.state.objects.items() if made["object"] == "charge")


async def test_a_seller_is_onboarded_and_paid(shop: Shop) -> None:
    async with shop.of("sam") as sam, shop.served.machine as machine:
        assert (await post(sam, "/payouts", amount="20.00")).status_code == 404
        assert (await post(sam, "/sellers/onboard")).json()["url"].startswith("https://")
        assert (await get(sam, "/sellers/me")).json()["ready"] is False
        account = await asyncio.to_thread(shop.payments_service.payments.sellers.find, "sam")
        with shop.stripe.lock:
            connect.onboard(shop.stripe.state, account.account_id or "")
        await shop.settle()
        assert (await get(sam, "/sellers/me")).json()["ready"] is True
        assert (await post(sam, "/payouts", amount="20.00")).status_code == 402
        assert (await post(machine, "/payouts/nobody-s/retry")).status_code == 404
        assert [one["status"] for one in (await get(sam, "/payouts")).json()["data"]] == ["refused"]


async def test_a_success_page_and_foreign_messages_book_nothing(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.served.client() as stranger:
        opened = (await post(ann, "/topups", amount="25.00")).json()
        page = terms_of(shop.served.services.settings).success_url
        assert page.endswith("/console/balance/paid?session={CHECKOUT_SESSION_ID}")
        await stranger.get("/console/balance/paid", params={"session": opened["id"]})
        assert (await get(ann, f"/topups/{opened['id']}")).json()["status"] == "open"
        before = await shop.standing()
        await shop.pay(opened["id"])
        body = shop.stripe.webhooks.waiting[-1].body
        live = json.dumps(json.loads(body) | {"livemode": True}).encode()
        for what, content, signature in (
            ("forged", body, sign(body, "whsec_mallory")),
            ("changed", body + b" ", sign(body, ACCOUNT_SECRET)),
            ("old", body, sign(body, ACCOUNT_SECRET, at_s=1_600_000_000)),
            ("future", body, sign(body, ACCOUNT_SECRET, at_s=4_000_000_000)),
            ("live", live, sign(live, ACCOUNT_SECRET)),
            ("unsigned", body, ""),
            ("no event", b"{}", sign(b"{}", ACCOUNT_SECRET)),
        ):
            headers = {"Stripe-Signature": signature}
            answer = await stranger.post("/accounting/v1/webhooks/stripe", content=content, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "webhook_refused"), what
        await asyncio.to_thread(shop.payments_service.keeper.look)
        assert await shop.standing() == before
        good = {"Stripe-Signature": sign(body, ACCOUNT_SECRET)}
        elsewhere = await stranger.post("/accounting/v1/webhooks/stripe-connect", content=body, headers=good)
        assert elsewhere.status_code == 400
        big = await stranger.post("/accounting/v1/webhooks/stripe", content=b"x" * 300_000, headers=good)
        assert big.status_code == 413
        answers = [
            (await stranger.post("/accounting/v1/webhooks/stripe", content=body, headers=good)).json()
            for _ in range(2)
        ]
        assert answers == [{"received": True, "new": True}, {"received": True, "new": False}]
        await shop.settle()
        assert await shop.paid("ann") == 25 * USD


async def test_a_dispute_freezes_until_it_is_won(shop: Shop) -> None:
    ledger, payer = shop.served.services.ledger, Payer("ann", "home")
    async with shop.of("ann") as ann:
        topup_id = await shop.buy(ann)
        topup = await asyncio.to_thread(shop.payments_service.payments.topups.find, topup_id)
        await ledger.hold("r1", payer, USD)
        with shop.stripe.lock:
            dispute = paying.open_dispute(shop.stripe.state, topup.intent_id or "")
        await shop.settle()
        with pytest.raises(PayerFrozen):
            await ledger.hold("r2", payer, USD)
        assert (await post(ann, "/topups", amount="25.00")).json()["error"]["code"] == "payments_frozen"
        with shop.stripe.lock:
            paying.close_dispute(shop.stripe.state, dispute["id"], won=True)
        await shop.settle()
        await ledger.hold("r3", payer, USD)
        await shop.check()


async def test_the_console_says_that_payments_are_in_test_mode(shop: Shop) -> None:
    token = shop.served.key_of("ann")
    async with shop.served.client() as browser:
        signed_in = await browser.post("/console/login", data={"key": token})
        page = await browser.get("/console")
        assert "TEST MODE" in page.text, signed_in.text


async def test_a_frozen_user_moves_no_credits(shop: Shop) -> None:
    async with shop.of("ann") as ann, shop.served.machine as machine:
        await shop.buy(ann)
        frozen = await post(machine, "/payments/frozen/ann", verb="PUT", why="looked into")
        assert (frozen.status_code, frozen.json()["frozen"]) == (200, "looked into")
        for path in ("/credits/pool", "/topups"):
            refused = await post(ann, path, amount="5.00")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "payments_frozen"), path
        assert (await post(machine, "/payments/frozen/ann", verb="PUT", why=None)).status_code == 200
        assert (await post(ann, "/credits/pool", amount="5.00")).status_code == 200


async def test_credits_bought_a_moment_ago_stay_out_of_the_pool(serve: Serve) -> None:
    async with open_shop(serve, pool_rest_days=7) as shop, shop.of("ann") as ann, shop.served.machine as machine:
        await shop.buy(ann)
        await post(machine, "/credits", user="ann", amount="5.00", reason="bank transfer")
        refused = await post(ann, "/credits/pool", amount="5.01")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "amount")
        assert "5.00 can be moved" in refused.json()["error"]["message"]
        # At the same time, too: nobody moves the same old credits twice.
        moved = await asyncio.gather(*(post(ann, "/credits/pool", amount="5.00") for _ in range(4)))
        assert [one.status_code for one in moved].count(200) == 1
        assert await shop.paid("ann") == 25 * USD


async def test_a_broken_ledger_refuses_what_sends_money_away(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shop.of("ann") as ann, shop.served.machine as machine:
        topup = await shop.buy(ann)
        broken = BrokenRule("equation", ("x",))
        monkeypatch.setattr(shop.served.services.ledger.inspection, "_essential", broken)
        for asked in (
            await post(machine, "/refunds", topup=topup, amount="5.00"),
            await post(ann, "/credits/pool", amount="5.00"),
        ):
            assert (asked.status_code, asked.json()["error"]["code"]) == (503, "ledger_broken")
        assert await shop.paid("ann") == 25 * USD


async def test_an_operator_stops_payouts_to_a_seller(shop: Shop) -> None:
    async with shop.of("sam") as sam, shop.served.machine as machine:
        assert (await post(sam, "/sellers/frozen/sam", verb="PUT", why="x")).status_code == 403
        await post(sam, "/sellers/onboard")
        assert (await post(machine, "/sellers/frozen/sam", verb="PUT", why="a stolen card")).status_code == 200
        refused = await post(sam, "/payouts", amount="20.00")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "seller")
        assert (await get(sam, "/sellers/me")).json()["reason"] == "a stolen card"
        assert (await get(machine, "/payments")).json()["frozen_sellers"] == [
            {"user": "sam", "reason": "a stolen card"}
        ]


async def test_automatic_top_ups_have_a_ceiling_per_day(shop: Shop) -> None:
    async with shop.of("ann") as ann:
        await shop.buy(ann, save_method=True)
        for per_day, status in ((0, 400), (25, 400), (2, 200)):
            answer = await post(ann, "/topups/auto", verb="PUT", below="5", amount="10", per_day=per_day)
            assert answer.status_code == status, answer.text
        shown = (await get(ann, "/topups/auto")).json()
        assert (shown["per_day"], shown["paused_until"]) == (2, None)
        assert (shown["per_month"], shown["spent_this_month"]) == ("500.00", "0.00")


async def test_automatic_top_ups_have_a_ceiling_per_month(shop: Shop) -> None:
    async with shop.of("ann") as ann:
        await shop.buy(ann, save_method=True)
        wanted: dict[str, Any] = {"below": "5", "amount": "10", "per_day": 24}
        for per_month, status in (("10.79", 400), ("1e3", 400), (20, 400), ("-1", 400), ("21.6", 200)):
            answer = await post(ann, "/topups/auto", verb="PUT", **wanted, per_month=per_month)
            assert answer.status_code == status, answer.text
            if status == 400:
                assert answer.json()["error"]["param"] == "per_month", answer.text
        assert (await get(ann, "/topups/auto")).json()["per_month"] == "21.60"


async def test_without_a_key_of_stripe_s_there_are_no_payments(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        for path in ("/topups", "/webhooks/stripe", "/payouts"):
            refused = await post(machine, path, amount="5.00")
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_feature")
        assert (await get(machine, "/balance", user="owner")).status_code == 200


def test_settings_of_payments_are_whole_and_say_what_is_wrong() -> None:
    for wrong in (
        {"secret_key": "pk_test_public"},
        {"secret_key": "sk_test_x"},
        {"fee_min_usd": "0.001"},
        {"topup_amounts_usd": ("0",)},
        {"payout_min_usd": "ten"},
        {"success_url": "ftp://x"},
        {"days_kept": 30},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong)) + "|webhook_secrets"):
            PaymentsSettings(**wrong)
    assert Settings(payments=PaymentsSettings()).payments.is_enabled is False


def test_a_key_file_is_closed_to_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("keys") / "stripe"
    path.write_text("sk_test_abc\n")
    settings = PaymentsSettings(secret_key_file=path, webhook_secrets=("whsec",))
    path.chmod(0o644)
    with pytest.raises(SettingsInvalid, match="chmod 600"):
        secret_key(settings)
    path.chmod(0o600)
    assert secret_key(settings) == "sk_test_abc"
