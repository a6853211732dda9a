"""Selling: the agent's state, earnings and payouts, disputes, the marketplace."""

import asyncio
import json
import re
import sqlite3
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from pydantic import SecretStr

from accounting.metering.delivered import Delivered
from accounting.spending.earned import Earned
from cluster.trust.addresses import Target
from gateway.admin.idle import Idle
from gateway.app import create_app, open_services
from gateway.billing.payments.factory import terms_of
from gateway.console.filters import usd
from gateway.console.pages.selling import first_sales, sellers_here
from gateway.console.pages.selling.accounts import PayoutLine, Standing, read_reply
from gateway.console.pages.selling.agent import agent_view
from gateway.console.pages.selling.maturity import by_day
from gateway.console.pages.selling.records import AgentFiles
from gateway.identity.audit import Filter
from gateway.lanes.preemptible.agent import AgentWord
from gateway.settings import PaymentsSettings, Settings
from market.marketplace.marketplace import Marketplace
from market.marketplace.periodic import PeriodicTasks
from market.marketplace.tables import DisputeRow, Maturity
from market.marketplace.terms import DAY_NS, MarketplaceTerms
from market.network.outbound import OutboundReply
from market.protocol.channels.terms import ChannelTerms
from market.protocol.counting.answer import transcript_of
from market.seller.states import UNREACHED
from market.settings.marketplace import MarketplaceSettings
from market.settings.seller import SellingSettings
from runtime.errors import Overloaded
from runtime.times import at
from tests.console.browsing import visiting
from tests.console.pages.settings_files import settings_file
from tests.console.test_live import watching
from tests.databases import prepared
from tests.fakes.stripe import connect
from tests.fakes.stripe.server import ACCOUNT_SECRET, API_KEY, CONNECT_SECRET, StripeServer
from tests.gateway.api.conftest import Served
from tests.gateway.api.shops import Shop
from tests.market.marketplace.conftest import USD, Hall
from tests.market.marketplace.rules.dealing import Dealing
from tests.market.parties import id_of
from tests.market.seller.shop import shop_beside
from tests.market.seller.stage import staged
from tests.market.trade import DIGEST

pytestmark = pytest.mark.anyio

SELLING = "/console/selling"


@pytest.fixture
def stripe() -> Iterator[StripeServer]:
    stripe = StripeServer()
    stripe.start()
    yield stripe
    stripe.stop()


@asynccontextmanager
async def open_marketplace(folder: Path, stripe: StripeServer, **terms: Any) -> AsyncIterator[Hall]:
    """A marketplace with a bank: Ann has 10 USD, Sam, whose role is seller, sells as `seller`."""
    settings = Settings(
        data_dir=folder,
        marketplace=MarketplaceSettings(enabled=True, **{"tick_s": 300} | terms),
        payments=PaymentsSettings(
            secret_key=SecretStr(API_KEY),
            webhook_secrets=(SecretStr(ACCOUNT_SECRET),),
            connect_webhook_secrets=(SecretStr(CONNECT_SECRET),),
            base_url=stripe.url,
            grace_h=0,
            tick_s=300,
            account_rest_h=0,
            payout_min_usd="0.01",
        ),
    )
    async with open_services(settings, prepared(folder)) as services:
        hall = Hall(Served(services, create_app(services, Target("127.0.0.1", 1))))
        services.directory.users.add("ann")
        services.directory.users.add("sam", role="seller")
        services.directory.users.add("tom", role="seller")
        await hall.credit("ann", 10 * USD)
        assert (await hall.register("sam", "seller")).status_code == 200
        yield hall


async def traded(hall: Hall, jobs: int = 1) -> Dealing:
    """Ann has put 2 USD aside for Sam, and both have signed for some requests."""
    allocation = await hall.allocated("ann", "2.00")
    dealing = Dealing(ChannelTerms(id_of("buyer"), id_of("seller"), allocation.digest))
    for _ in range(jobs):
        dealing.serve(0, 10_000_000, 5_000)
    assert (await hall.settle(allocation, dealing.records)).status_code == 200
    return dealing


def audited(hall: Hall | Served, action: str) -> list[str]:
    served = hall.served if isinstance(hall, Hall) else hall
    return [entry.target for entry in served.services.directory.audit.entries(Filter(action=action))]


def once_of(page: str) -> str:
    found = re.search('name="once" value="([0-9a-f]+)"', page)
    assert found
    return found[1]


# ---------------------------------------------------------------- the agent


@pytest.mark.parametrize(
    ("state", "preemptible_jobs", "idle_s", "word", "says"),
    [
        ("selling", 0, 900.0, "listed", "listed for buyers"),
        ("selling", 2, 900.0, "serving", "2 buyer requests"),
        ("own_requests", 0, 0.0, "waiting", "your requests go first"),
        ("own_requests", 0, 200.0, "waiting", "2 min"),
        ("battery", 0, 900.0, "waiting", "battery"),
        (UNREACHED, 0, 900.0, "tunnel down", "cloudflared"),
        ("this cannot be listed: prices", 0, 900.0, "blocked", "prices"),
    ],
)
def test_the_agents_word_is_put_for_users(
    state: str, preemptible_jobs: int, idle_s: float, word: str, says: str
) -> None:
    idle = Idle(1, idle_s, int(not idle_s), 0, preemptible_jobs, None, None, ())
    known: Any = {"is_paused": False, "idle": idle, "settings": SellingSettings()}
    view = agent_view(AgentWord(state, 100.0), 101.0, preemptible_jobs, **known)
    assert view.word == word
    assert says in f"{view.what} {view.remedy}"
    gone = agent_view(AgentWord(state, 100.0), 400.0, 0, **known)
    assert (gone.word, gone.is_there) == ("unavailable", False)


async def test_a_gateway_that_is_no_marketplace_shows_its_sales_live(served: Served) -> None:
    async with visiting(served) as owner, watching(served, owner, path=f"{SELLING}/live") as stream:
        for part in ("agent", "listings", "sold", "trades"):
            await stream.until(f'hx-target="#selling-{part}"')


async def test_listings_and_sales_are_the_agents_own(served: Served) -> None:
    """A real agent on this gateway's folder, beside a staged gateway; its files are read while it writes there."""
    folder: Path = served.services.settings.data_dir
    async with staged() as stage, shop_beside(stage, folder) as shop, visiting(served) as owner:
        buyer = await shop.buyer()
        assert (await buyer.buy(buyer.order())).has_ended
        await shop.is_empty()
        record = await shop.listed()
        async with served.machine as machine:
            assert (await machine.get("/admin/idle", params={"state": "selling"})).status_code == 200
        page = await owner.get(SELLING)
        for part in ("test/demo", "$50.00", "$200.00", str(record.revision)[:12], "always", "never on battery"):
            assert part in page.text, part
        assert "outdated settings" in page.text, "the listing has a price that millrace.toml does not"
        sales = re.search("Newest sales.*?</table>", page.text, re.DOTALL)
        assert sales
        assert sales[0].count("<tr>") == 2
        live = await owner.get(f"{SELLING}/started")
        assert live.text.count("waiting</span>") == 1, "only the settings are not there"
        assert (await owner.post(f"{SELLING}/pause")).status_code == 303
        assert "An operator paused selling" in (await owner.get(SELLING)).text
        assert (await owner.post(f"{SELLING}/resume")).status_code == 303
        assert "An operator paused selling" not in (await owner.get(SELLING)).text
    assert audited(served, "pause.begin") == audited(served, "pause.end") == ["pause:selling"]


# ---------------------------------------------------------------- earnings


def test_a_days_sales_mature_together_when_the_marketplace_says_so() -> None:
    terms, day = MarketplaceTerms(), 20_000
    sales = [
        Earned(1, "settle:a:1", "a", day * DAY_NS + 5, 700),
        Earned(2, "settle:a:2", "a", day * DAY_NS + 9, 300),
    ]
    later = [*sales, Earned(3, "settle:b:1", "b", (day + 1) * DAY_NS, 50)]
    first, second = by_day(later, {"a:2": 100}, terms, is_new=True, is_barred=False)
    assert (first.amount_nano, first.sales, first.due_ns) == (900, 2, (day + 8) * DAY_NS)
    assert (second.amount_nano, second.due_ns) == (50, (day + 9) * DAY_NS)
    assert by_day(sales, {}, terms, is_new=False, is_barred=False)[0].due_ns == (day + 3) * DAY_NS
    assert by_day(sales, {}, terms, is_new=True, is_barred=True)[0].due_ns is None


async def test_a_seller_sees_when_earnings_mature_and_nobody_elses(tmp_path: Path, stripe: StripeServer) -> None:
    async with open_marketplace(tmp_path, stripe) as hall:
        dealing = await traded(hall)
        net_nano = dealing.due_nano - dealing.due_nano * 500 // 10_000
        async with visiting(hall.served, "sam") as sam, visiting(hall.served, "tom") as tom:
            mine, his = await sam.get(f"{SELLING}/earnings"), await tom.get(f"{SELLING}/earnings")
            shown = usd(net_nano)
            assert mine.text.count(shown) >= 3, "pending, its day, its line of the statement"
            assert "becomes available" in mine.text
            assert "19 more paid requests, 2 buyers, 7 days" in mine.text
            assert shown not in his.text
            now = await sam.get(SELLING)
            assert "$2.00" in now.text
            assert "ann" not in now.text, "a seller is not told who buys"
            assert "The agent" not in now.text, "the machine is its operators'"
            sheet = (await sam.get(f"{SELLING}/earnings/statement.csv")).text.splitlines()
            assert (len(sheet), sheet[1].split(",")[6]) == (2, "maturing")
            for path in ("/list", "/list/check", "/started", "/marketplace"):
                assert (await sam.get(SELLING + path)).status_code == 403, path
            for path in ("/pause", "/list/write", "/marketplace/sellers/sam/reinstate"):
                assert (await sam.post(SELLING + path)).status_code == 403, path
        async with visiting(hall.served, "ann") as ann:
            refused = await ann.get(SELLING)
            assert (refused.status_code, "Only sellers" in refused.text) == (403, True)


def held_back_before(instance: Marketplace) -> None:
    """As if a sale had been freed, and one more had matured that nothing has booked yet."""
    with instance.context.write() as session, session.begin():
        terms: dict[str, Any] = {"seller_user_id": "sam", "reserve_bps": 1000, "first_seq": 1, "last_seq": 1}
        session.add(Maturity(**terms, label="w.1", amount_nano=70 * USD, status="booked", created_ns=1))
        session.add(Maturity(**terms, label="2026-11-01.9", amount_nano=3 * USD, status="new", created_ns=1))


async def test_nothing_on_its_way_is_left_out_and_of_who_is_barred_all_of_it_waits(
    tmp_path: Path, stripe: StripeServer
) -> None:
    async with open_marketplace(tmp_path, stripe) as hall, visiting(hall.served, "sam") as sam:
        await hall.marketplace.ask(held_back_before, hall.marketplace)
        page = (await sam.get(f"{SELLING}/earnings")).text
        assert "<td>w</td>" not in page
        assert re.search(r"held back</td>.*?\$7\.00.*?is released from the reserve", page, re.DOTALL)
        assert re.search(r"2026-11-01</td>.*?\$3\.00.*?becomes available", page, re.DOTALL)
        await hall.marketplace.ask(hall.marketplace.sellers.suspend, "sam", "odd")
        suspended = (await sam.get(f"{SELLING}/earnings")).text
        assert suspended.count("on hold: you are suspended") == 2
        assert "is released from the reserve" not in suspended


async def test_a_payout_is_made_once_however_often_its_form_is_sent(tmp_path: Path, stripe: StripeServer) -> None:
    async with open_marketplace(tmp_path, stripe, maturity_days_new=0, reserve_bps=1000) as hall:
        shop = Shop(hall.served, stripe)
        async with hall.of("ann") as ann:
            await shop.buy(ann, "25.00")
        await traded(hall)
        await asyncio.to_thread(PeriodicTasks(hall.marketplace, 1.0).look)
        async with visiting(hall.served, "sam") as sam:
            page = await sam.get(f"{SELLING}/earnings")
            assert "First set up" in page.text
            early = await sam.post(f"{SELLING}/earnings/payout", amount="0.10", once=uuid.uuid4().hex)
            assert (early.status_code, "complete onboarding first" in early.text) == (400, True)
            linked = await sam.post(f"{SELLING}/earnings/onboard", once=once_of(page.text))
            assert re.search('href="https://connect.stripe.test/[^"]*" target="_blank" rel="noopener', linked.text)
            account = await asyncio.to_thread(shop.payments_service.payments.sellers.find, "sam")
            with stripe.lock:
                connect.onboard(stripe.state, account.account_id or "")
            await shop.settle()
            page = await sam.get(f"{SELLING}/earnings")
            assert "released from the reserve" in page.text
            assert "At least $0.01, at most $1,000.00 per day" in page.text
            once = once_of(page.text)
            for amount, says in (
                ("ten", "decimal string"),
                ("0.001", "whole cents"),
                ("2000.00", "per day"),
                ("", "Enter a value"),
            ):
                wrong = await sam.post(f"{SELLING}/earnings/payout", amount=amount, once=once)
                assert wrong.status_code == 400, amount
                assert re.search('name="amount"[^>]* aria-invalid="true"', wrong.text), amount
                assert says in wrong.text, amount
            much = await sam.post(f"{SELLING}/earnings/payout", amount="900.00", once=uuid.uuid4().hex)
            assert much.status_code == 400
            for _ in range(2):
                done = await sam.post(f"{SELLING}/earnings/payout", amount="0.10", once=once)
                assert done.status_code == 303, done.text
            await shop.settle()
            rows = await asyncio.to_thread(shop.payments_service.payments.payouts.newest, "sam", None, 10)
            assert [(row.amount_nano, row.status) for row in rows if row.status != "refused"] == [
                (USD // 10, rows[0].status)
            ]
            after = await sam.get(f"{SELLING}/earnings")
            assert "$0.10" in after.text
        await hall.check()


async def test_a_marketplace_elsewhere_is_asked_with_the_machines_own_key(tmp_path: Path, served: Served) -> None:
    """Where it is away, that is said, and nothing else of the page is lost."""
    away = '[selling]\nmarketplace_url = "http://127.0.0.1:9"\nmarketplace_key = "mr-of-file"\nallows_loopback = true\n'
    with settings_file(served, away):
        async with visiting(served) as owner:
            for path in ("", "/earnings", "/standing"):
                page = await owner.get(SELLING + path)
                assert page.status_code == 200, page.text
                assert "does not answer" in page.text, path
                assert "mr-of-file" not in page.text
            priced = await owner.get(f"{SELLING}/list/price", model="m", minutes="5")
            assert "default; no marketplace was asked yet" in priced.text


@pytest.mark.parametrize(
    "earned",
    [{"maturing": "many"}, {"owed": "1e3"}, {"payable": "9" * 40}, {"lacking": {"jobs": 1}}, {"lacking": {}}],
)
def test_a_marketplace_elsewhere_that_talks_nonsense_is_told_apart(earned: dict[str, Any]) -> None:
    lacking = earned.pop("lacking", {"jobs": 1, "buyers": 1, "days": 1})
    amounts = dict.fromkeys(("maturing", "payable", "reserve", "owed"), "0.00") | earned
    mine: dict[str, Any] = {"account": "sam", "identities": [], "suspended": None, "probation": True}
    body = json.dumps(mine | {"earned": amounts, "lacking": lacking}).encode()
    with pytest.raises(Overloaded, match=r"Invalid answer from market\.example"):
        read_reply(OutboundReply(200, body), Standing, "market.example")
    payout = {"id": "p", "amount": "1.00", "status": "paid", "attempt": 1, "reason": None}
    for wrong in ({"created": "yesterday"}, {"created": "2026-11-23T10:00:00"}, {"amount": "x", "created": at(1)}):
        with pytest.raises(Overloaded, match=r"Invalid answer from market\.example"):
            read_reply(OutboundReply(200, json.dumps(payout | wrong).encode()), PayoutLine, "market.example")


async def test_a_key_that_is_none_is_said_to_be_none(served: Served) -> None:
    with settings_file(served, '[selling]\nmarketplace_url = "https://127.0.0.1:9"\nmarketplace_key = "mr-ü"\n'):
        async with visiting(served) as owner:
            page = await owner.get(f"{SELLING}/standing")
            assert (page.status_code, "selling.marketplace_key is invalid" in page.text) == (200, True)
            assert "mr-ü" not in page.text


async def test_a_payout_that_nobody_knows_of_is_asked_for_under_the_same_name(served: Served) -> None:
    away = '[selling]\nmarketplace_url = "http://127.0.0.1:9"\nmarketplace_key = "mr-of-file"\nallows_loopback = true\n'
    once = uuid.uuid4().hex
    with settings_file(served, away):
        async with visiting(served) as owner:
            unsure = await owner.post(f"{SELLING}/earnings/payout", amount="0.25", once=once)
            assert unsure.status_code == 400
            assert once_of(unsure.text) == once
            assert 'name="amount" value="0.25"' in unsure.text
            assert "Retry payout of $0.25" in unsure.text


def test_stripe_leads_back_to_the_earnings() -> None:
    assert terms_of(Settings()).onboarding_url.endswith("/console/selling/earnings")


@asynccontextmanager
async def listening(hall: Hall) -> AsyncIterator[str]:
    """The marketplace on a real socket, as another gateway finds it."""
    config = uvicorn.Config(hall.served.app, port=0, log_config=None, lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


async def test_what_a_marketplace_elsewhere_owes_is_shown_and_paid_out(
    tmp_path: Path, served: Served, stripe: StripeServer
) -> None:
    async with (
        open_marketplace(tmp_path, stripe, maturity_days_new=0, fee_bps=1000) as hall,
        listening(hall) as url,
    ):
        shop = Shop(hall.served, stripe)
        async with hall.of("ann") as ann:
            await shop.buy(ann, "25.00")
        await traded(hall)
        await asyncio.to_thread(PeriodicTasks(hall.marketplace, 1.0).look)
        key = hall.served.key_of("sam")
        text = f'[selling]\nmarketplace_url = "{url}"\nmarketplace_key = "{key}"\nallows_loopback = true\n'
        with settings_file(served, text):
            async with visiting(served) as owner:
                page = await owner.get(f"{SELLING}/earnings")
                assert "not started" in page.text
                linked = await owner.post(f"{SELLING}/earnings/onboard", once=once_of(page.text))
                assert "https://connect.stripe.test/" in linked.text
                account = await asyncio.to_thread(shop.payments_service.payments.sellers.find, "sam")
                with stripe.lock:
                    connect.onboard(stripe.state, account.account_id or "")
                await shop.settle()
                once = once_of((await owner.get(f"{SELLING}/earnings")).text)
                for amount, says in (("0.001", "whole cents"), ("2000.00", "limited to 1000.00 USD a day")):
                    wrong = await owner.post(f"{SELLING}/earnings/payout", amount=amount, once=uuid.uuid4().hex)
                    assert (wrong.status_code, says in wrong.text) == (400, True), wrong.text
                for _ in range(2):
                    done = await owner.post(f"{SELLING}/earnings/payout", amount="0.25", once=once)
                    assert done.status_code == 303, done.text
                after = await owner.get(f"{SELLING}/earnings")
                assert after.text.count("$0.25") >= 1
                weak = served.services.keys.issue("app", ("cluster",), user_id="owner").token
                async with visiting(served, "owner", token=weak) as program:
                    refused = await program.post(
                        f"{SELLING}/earnings/payout", amount="0.25", once=uuid.uuid4().hex
                    )
                    assert refused.status_code == 403, "it is not the money of the key's user"
                priced = await owner.get(f"{SELLING}/list/price", model="m", minutes="5")
                assert "10 %" in priced.text, "the marketplace's own fee"
        rows = await asyncio.to_thread(shop.payments_service.payments.payouts.newest, "sam", None, 10)
        assert [row.amount_nano for row in rows if row.status != "refused"] == [USD // 4]
        await hall.check()


# ---------------------------------------------------------------- disputes and the marketplace


def overdue(instance: Marketplace, dispute_id: str) -> None:
    """As after a day in which the tokenizer could not be had."""
    with instance.context.write() as session, session.begin():
        row = session.get_one(DisputeRow, dispute_id)
        row.opened_ns -= 2 * DAY_NS


async def test_a_seller_opens_a_dispute_and_the_rule_decides(tmp_path: Path, stripe: StripeServer) -> None:
    async with open_marketplace(tmp_path, stripe) as hall:
        words = "the mill grinds what the race brings " * 100
        allocation = await hall.allocated("ann", "0.50")
        dealing = Dealing(ChannelTerms(id_of("buyer"), id_of("seller"), allocation.digest))
        said = transcript_of(DIGEST, {0: Delivered(words)})
        await hall.settle(allocation, dealing.serve(0, 0, 10, tells=2000, transcript=said))
        path = f"{SELLING}/standing/dispute?allocation={allocation.digest}&lane=0"
        fields = {"content": words}
        async with visiting(hall.served, "sam") as sam, visiting(hall.served, "tom") as tom:
            shown = await sam.get(f"{SELLING}/standing")
            assert path.replace("&", "&amp;") in shown.text
            assert "declared" in shown.text
            assert "verified" not in shown.text.lower()
            assert (await tom.get(path)).status_code == (await tom.post(path, **fields)).status_code == 404
            poor = await sam.post(path, **fields)
            assert poor.status_code == 400, "the fee is put aside of credits, and there are none"
            await hall.credit("sam", USD)
            wrong = await sam.post(path, content="")
            assert (wrong.status_code, 'id="f-content-error"' in wrong.text) == (400, True)
            opened = await sam.post(path, **fields)
            assert opened.status_code == 303, opened.text
            assert "answer until" in (await sam.get(f"{SELLING}/standing")).text
            async with visiting(hall.served) as owner:
                open_ = await owner.get(f"{SELLING}/marketplace")
                assert "decided by rule" in open_.text
                row = hall.marketplace.disputes.of("sam", allocation.digest)[0][1]
                assert row
                early = await owner.post(f"{SELLING}/marketplace/disputes/{row.id}/decide")
                assert early.status_code == 404, "no operator cuts short the other side's time"
                await hall.marketplace.ask(overdue, hall.marketplace, row.id)
                assert "postponed" in (await owner.get(f"{SELLING}/marketplace")).text
                done = await owner.post(f"{SELLING}/marketplace/disputes/{row.id}/decide")
                assert done.status_code == 303, done.text
            row = hall.marketplace.disputes.of("sam", allocation.digest)[0][1]
            assert row
            assert (row.status, row.loser) == ("decided", "seller"), "counted, independent of the admin"
            assert "you lost" in (await sam.get(f"{SELLING}/standing")).text
            assert "Nothing is disputed on this sub-channel" in (await sam.get(path)).text
        await hall.check()


async def test_operators_bar_sellers_and_give_back_what_fraud_earned(tmp_path: Path, stripe: StripeServer) -> None:
    async with open_marketplace(tmp_path, stripe) as hall, visiting(hall.served) as owner:
        await traded(hall)
        page = await owner.get(f"{SELLING}/marketplace")
        for part in ("sam", "ann", "$2.00", "needs 19 more requests"):
            assert part in page.text, part
        nameless = await owner.post(f"{SELLING}/marketplace/sellers/sam/suspend", why="")
        assert (nameless.status_code, "Enter a value" in nameless.text) == (400, True)
        assert (await owner.post(f"{SELLING}/marketplace/sellers/ann/suspend", why="odd")).status_code == 400
        assert (
            await owner.post(f"{SELLING}/marketplace/sellers/sam/suspend", why="odd answers")
        ).status_code == 303
        assert await hall.marketplace.ask(hall.marketplace.sellers.suspended_reason, "sam") == "odd answers"
        async with visiting(hall.served, "sam") as sam:
            told = await sam.get(f"{SELLING}/earnings")
            assert "You are suspended: odd answers" in told.text
            assert "on hold: you are suspended" in told.text
        await owner.post(f"{SELLING}/marketplace/sellers/sam/reinstate")
        assert await hall.marketplace.ask(hall.marketplace.sellers.suspended_reason, "sam") is None
        other = await owner.post(f"{SELLING}/marketplace/sellers/sam/forfeit", why="another model", name="sum")
        assert (other.status_code, "not match the seller" in other.text) == (400, True)
        standing = await hall.standing()
        assert standing["seller:sam:maturing"] > 0
        done = await owner.post(f"{SELLING}/marketplace/sellers/sam/forfeit", why="another model", name="sam")
        assert done.status_code == 303, done.text
        standing = await hall.standing()
        assert (standing["seller:sam:maturing"], standing["user:ann:paid"]) == (0, 10 * USD)
        assert "forfeited" in (await owner.get(f"{SELLING}/marketplace")).text
        assert audited(hall, "market.forfeit") == ["user:sam"]
        await hall.check()


async def test_the_marketplaces_sums_are_of_all_sellers(
    tmp_path: Path, stripe: StripeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sellers_here, "SHOWN_MAX", 1)
    async with open_marketplace(tmp_path, stripe) as hall, visiting(hall.served) as owner:
        dealing = await traded(hall)
        assert (await hall.register("tom", "other")).status_code == 200
        page = (await owner.get(f"{SELLING}/marketplace")).text
        assert "Suspend tom?" in page
        assert "Suspend sam?" not in page
        assert "the newest 1 of 2 sellers" in page
        assert usd(dealing.due_nano - dealing.due_nano * 500 // 10_000) in page, "what sam has earned counts"
        assert "Suspend sam?" in (await owner.get(f"{SELLING}/marketplace", seller="sam")).text


async def test_a_key_that_may_not_administer_looks_and_changes_nothing(
    tmp_path: Path, stripe: StripeServer
) -> None:
    async with open_marketplace(tmp_path, stripe) as hall:
        weak = hall.served.services.keys.issue("app", ("cluster",), user_id="owner").token
        async with visiting(hall.served, "owner", token=weak) as visit:
            assert "no admin access" in (await visit.get(f"{SELLING}/marketplace")).text
            for path in ("pause", "list/write", "marketplace/sellers/sam/suspend"):
                assert (await visit.post(f"{SELLING}/{path}", why="x")).status_code == 403
        assert hall.served.services.pauses.now == ()


# ---------------------------------------------------------------- the first sale


def news_of(text: str) -> list[str]:
    """What a stream's news region tells, by what browsers remember it by."""
    return re.findall('data-news="([^"]+)"', text)


async def test_a_seller_is_told_of_the_first_sale_and_nobody_else(
    tmp_path: Path, stripe: StripeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_marketplace(tmp_path, stripe) as hall:
        async with visiting(hall.served, "sam") as sam, visiting(hall.served, "tom") as tom:
            async with watching(hall.served, sam, path=f"{SELLING}/live") as his:
                await his.until("selling-trades")
                await traded(hall)
                await his.until("Your first sale on this marketplace")
            async with watching(hall.served, sam, path="/console/overview/live") as again:
                await again.until("Your first sale")
                assert set(news_of(again.text)) == {"marketplace sam"}, "the same, for browsers to know"
            async with watching(hall.served, tom, path=f"{SELLING}/live") as toms:
                await toms.until("selling-trades")
                assert not news_of(toms.text)
        monkeypatch.setattr(first_sales, "NEWS_NS", 0)
        async with visiting(hall.served, "sam") as sam, watching(hall.served, sam, path=f"{SELLING}/live") as late:
            await late.until("selling-trades")
            assert not news_of(late.text), "no news the day after"


def test_only_rows_that_are_new_are_read_for_first_sales(tmp_path: Path) -> None:
    columns = "channel, lane, seq, model, amount_nano, made_ms, is_booked"

    def sell(path: Path, *rows: tuple[str, int], amount_nano: int = 5) -> None:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"CREATE TABLE IF NOT EXISTS sales ({columns})")
            of_amount = f"INSERT INTO sales VALUES ('c', 0, 1, ?, {amount_nano}, ?, 1)"
            db.executemany(of_amount, rows)

    files = AgentFiles(tmp_path)
    assert files.sold_first(0) is None, "nobody sells here"
    sell(tmp_path / "selling.db", ("a", 20), ("a", 10), ("b", 30))
    found = files.sold_first(0)
    assert found is not None
    assert (found[0], [(each.model, each.made_ns) for each in found[1]]) == (3, [("a", 10**7), ("b", 3 * 10**7)])
    assert files.sold_first(3) == (3, ())
    sell(tmp_path / "selling.db", ("c", 40))
    assert [each.model for each in (files.sold_first(3) or (0, ()))[1]] == ["c"]
    sell(tmp_path / "selling.db", ("d", 50), amount_nano=0)
    assert files.sold_first(4) == (5, ()), "what came to nothing is no sale"
    # A recreated file has fewer rows than were known.
    assert [each.model for each in (files.sold_first(9) or (0, ()))[1]] == ["a", "b", "c"]
