"""From a caller's request to sellers and back: the router, the lane, the buyer's process, the ledger."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, select

from accounting.chart import EXPENSE_BURST_VARIANCE, provider_accrued
from accounting.ledger.balances import balance
from accounting.metering.recharge import mischarges
from accounting.tables import usage_table
from gateway.billing.request_log import RequestEntry
from gateway.identity.key_rows import KeyTerms
from gateway.settings import CacheSettings, LaneName, MeteringSettings
from gateway.settings.base import Privacy
from market.network.record_keeper import KeeperPolicy, RecordKeeper
from market.protocol.listings.listing import Datacenter, DataPolicy
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import Record
from market.settings.buyer import MarketSettings
from runtime.hang_ups import UNPAID_MAX
from tests.accounting.tokenizer import make_tokenizer
from tests.fakes.market_seller import Manners, MarketSeller, selling
from tests.fakes.marketplace import KEY, FakeMarketplace, clearing
from tests.gateway.http.edges import Answered, Edge, until
from tests.gateway.requests.roads import nothing_is_left, receive, road, send, text_of
from tests.market.buyer.stalls import ANSWER, due_nano

pytestmark = pytest.mark.anyio

ASKED = {"messages": [{"role": "user", "content": "hi"}]}
CHEAPER = Prices(Amount(10_000_000), Amount(40_000_000), Amount(5_000_000))


@dataclass
class Fair:
    """A gateway that buys, the marketplace, and sellers."""

    running: Edge
    marketplace: FakeMarketplace
    sellers: list[MarketSeller]
    key: str

    async def ask(self, key: str | None = None, **fields: Any) -> Answered:
        given = {"model": "mill-1b", "stream": True, **ASKED, **fields}
        return await receive(await send(self.running, key or self.key, **given))

    def rows(self) -> list[Row[Any]]:
        with self.running.services.request_log._read() as session:
            query = select(usage_table).where(usage_table.c.lane == "market").order_by(usage_table.c.started_ns)
            return list(session.execute(query))

    async def key_for(
        self, name: str, lanes: tuple[LaneName, ...] = ("market",), privacy: Privacy = "public", **terms: Any
    ) -> str:
        """Another key of the same user."""
        given = KeyTerms(privacy=privacy, **terms)
        issue = self.running.services.keys.issue
        return (await asyncio.to_thread(lambda: issue(name, lanes, terms=given))).token

    async def logged(self, answered: Answered, lane: str, outcome: str, backend: str) -> RequestEntry:
        """The request log's row of this request, which is written behind the answer's back, with others."""
        request_id, log = answered.headers["x-request-id"], self.running.services.request_log
        await until(lambda: log.find(request_id) is not None)
        entry = log.find(request_id)
        assert entry
        assert (entry.lane, entry.outcome, entry.backend, entry.status) == (
            lane,
            outcome,
            backend,
            answered.status,
        )
        return entry

    async def row(self, number: int) -> Row[Any]:
        """What was written down of the request with this number."""
        await until(lambda: len(self.rows()) > number, 60)
        return self.rows()[number]

    def accrued_nano(self) -> int:
        """Return what the ledger owes sellers."""
        return self._balance_nano(provider_accrued("market"))

    def variance_nano(self) -> int:
        return self._balance_nano(EXPENSE_BURST_VARIANCE)

    def _balance_nano(self, account: str) -> int:
        with self.running.services.request_log._read() as session:
            return balance(session, account).posted_nano

    async def on_offer(self, count: int) -> None:
        lane = self.running.services.lanes["market"]
        async with asyncio.timeout(30):
            while len(lane.offers("mill-1b")) < count:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def fair(
    tmp_path: Path,
    *manners: dict[str, Any],
    audit_pause_s: float = 60.0,
    listed: Sequence[dict[str, Any]] = ({}, {}, {}),
    **sections: Any,
) -> AsyncIterator[Fair]:
    """The first seller is dearer than the others, so that these may go on for it; `listed` is what these say."""
    tokenizer = make_tokenizer(tmp_path)
    async with AsyncExitStack() as stack:
        marketplace = await stack.enter_async_context(clearing())
        sellers = [
            await stack.enter_async_context(selling(name, tokenizer, marketplace.id, **each))
            for name, each in zip(("ann", "bob", "cid", "dan"), manners, strict=False)
        ]
        first, *others = sellers
        cheaper = [
            each.listed(**({"pricing": CHEAPER} | said)) for each, said in zip(others, listed, strict=False)
        ]
        know(tmp_path / "gateway" / "market", [first.listed(), *cheaper])
        settings = MarketSettings(
            buy_for=("public",),
            marketplace_url=marketplace.url,
            marketplace_key=KEY,
            allows_loopback=True,
            silence_s=1,
            audit_pause_s=audit_pause_s,
        )
        marketplace.tokenizers = [tokenizer.sha256.lower()]
        named = {"mill": {"path": tokenizer.path, "sha256": tokenizer.sha256}}
        sections = {"metering": MeteringSettings.model_validate({"tokenizers": named})} | sections
        running = await stack.enter_async_context(road(tmp_path / "gateway", market=settings, **sections))
        services = running.services
        await services.ledger.credit("c1", "owner", 10**9, "test")
        key = await asyncio.to_thread(services.keys.create, "buys", ("market",))
        yield Fair(running, marketplace, sellers, key)


def know(folder: Path, records: list[Record]) -> None:
    """Before the buyer starts, as if it had heard of them when it ran last."""
    folder.mkdir(parents=True)
    keeping = KeeperPolicy(allows_loopback=True)
    keeper = RecordKeeper(folder / "known.db", lambda: time.time_ns() // 10**6, keeping)
    keeper.add([each.raw for each in records], "marketplace")
    keeper.close()


async def test_the_charge_is_what_was_delivered_whichever_side_breaks_off(tmp_path: Path) -> None:
    async with fair(tmp_path, {}, {}) as market:
        await market.on_offer(2)
        ann, bob = market.sellers
        from_ann: dict[str, Any] = {"provider": {"only": [ann.id[:12]]}}
        streamed = await market.ask(**from_ann)
        assert (streamed.status, text_of(streamed)) == (200, ANSWER)
        whole = await market.ask(stream=False, **from_ann)
        assert json.loads(whole.content)["choices"][0]["message"]["content"] == ANSWER
        for number in (0, 1):
            row = await market.row(number)
            assert (row.charge_nano, row.count_source) == (due_nano(ann, ANSWER, ASKED), "upstream")
            assert row.outcome == "complete"
        # A seller dies, and no other may take over.
        ann.manners = Manners(fault="cut", at=3)
        cut = await market.ask(**from_ann)
        assert text_of(cut) == "The mill grinds "
        row = await market.row(2)
        assert (row.outcome, row.charge_nano) == ("failed", due_nano(ann, "The mill grinds ", ASKED))
        # It dies before its first word: nothing is charged, and another one answers.
        ann.manners = Manners(fault="cut", at=0)
        bob.manners = Manners(refuses=429)
        assert (await market.ask(**from_ann)).status == 502
        row = await market.row(3)
        assert (row.charge_nano, row.completion_tokens) == (0, 0)
        bob.manners = Manners()
        # A caller hangs up: what had left is charged, counted by the listing's own tokenizer.
        ann.manners = Manners(chunk_s=0.2)
        reader, writer = await send(market.running, market.key, model="mill-1b", stream=True, **ASKED, **from_ann)
        await reader.readuntil(b"mill ")
        writer.close()
        row = await market.row(4)
        assert (row.outcome, row.count_source) == ("interrupted", "tokenizer")
        assert row.charge_nano == due_nano(ann, "The mill ", ASKED)
        await nothing_is_left(market.running)
        await check_the_ledger(market)


async def test_a_prompt_that_is_left_before_the_first_word_counts_and_is_bounded(tmp_path: Path) -> None:
    """It costs its caller nothing, and its seller time."""
    async with fair(tmp_path, {"chunk_s": 30.0}) as market:
        await market.on_offer(1)
        (ann,), running = market.sellers, market.running
        asked: dict[str, Any] = {"model": "mill-1b", "stream": True, **ASKED}
        for number in range(UNPAID_MAX):
            _, writer = await send(running, market.key, **asked)
            await until(lambda count=number: len(ann.requests) > count, 60)  # type: ignore[misc]
            writer.close()
            row = await market.row(number)
            assert (row.outcome, row.prompt_tokens > 0, row.charge_nano, row.cost_nano) == (
                "interrupted",
                True,
                0,
                0,
            )
        refused = await market.ask()
        assert (refused.status, refused.error["code"]) == (429, "too_many_hang_ups")
        assert len(ann.requests) == UNPAID_MAX
        await nothing_is_left(running)
        await check_the_ledger(market)


async def check_the_ledger(market: Fair) -> None:
    services = market.running.services
    with services.request_log._read() as session:
        assert mischarges(session) == []
    charged_nano = sum(row.charge_nano for row in market.rows())
    # What is owed beyond that may be booked by now, or not yet.
    assert market.accrued_nano() == charged_nano + market.variance_nano()
    assert (await services.ledger.balance("owner")).posted_nano == 10**9 - charged_nano
    assert [finding.rule for finding in await services.ledger.inspection.inspect()] == []
    # A lease returns its free credits after a while without requests.
    async with asyncio.timeout(60):
        while (await services.ledger.balance("owner")).held_nano:
            await asyncio.sleep(0.1)


async def test_what_goes_on_elsewhere_is_charged_as_the_sum(tmp_path: Path) -> None:
    texts = ("grinds ", "what ", "the race ", "brings.")
    async with fair(
        tmp_path, {"fault": "cut", "at": 2}, {"texts": texts}, cache=CacheSettings(answers="all")
    ) as market:
        await market.on_offer(2)
        ann, bob = market.sellers
        # By price alone bob leads, who then refuses: ann begins.
        bob.manners = Manners(refuses=429)
        order = {"sort": "price"}
        taken = asyncio.create_task(market.ask(provider=order, temperature=0))
        async with asyncio.timeout(60):
            while not bob.refused:
                await asyncio.sleep(0.005)
        bob.manners = Manners(texts=texts)
        answered = await taken
        assert text_of(answered) == ANSWER
        continued = {"messages": [*ASKED["messages"], {"role": "assistant", "content": "The mill "}]}
        due = due_nano(ann, "The mill ", ASKED) + due_nano(bob, "".join(texts), continued)
        row = await market.row(0)
        assert (row.charge_nano, row.cost_nano, row.price_id) == (due, due, None)
        await nothing_is_left(market.running)
        await check_the_ledger(market)
        await check_the_cache(market)


async def check_the_cache(market: Fair) -> None:
    """Threat 35: an answer that one tenant has bought is found by that tenant alone, under the same rules."""
    ann, bob = market.sellers
    ann.manners, bob.manners = Manners(), Manners()
    fields: dict[str, Any] = {"provider": {"sort": "price"}, "temperature": 0}
    asked = len(ann.raw) + len(bob.raw)
    again = await market.ask(**fields)
    assert again.headers["x-millrace-cache"] == "hit"
    assert len(ann.raw) + len(bob.raw) == asked
    services = market.running.services
    other = await asyncio.to_thread(lambda: services.keys.create("other", ("market",), user_id="bea"))
    await services.ledger.credit("c2", "bea", 10**9, "test")
    fresh = await market.ask(other, **fields)
    assert fresh.headers.get("x-millrace-cache") != "hit"
    assert len(ann.raw) + len(bob.raw) == asked + 1
    private = await market.ask(millrace={"privacy": "private"}, **fields)
    assert private.status == 403
    assert len(ann.raw) + len(bob.raw) == asked + 1


async def test_what_a_caller_rules_out_gets_nothing_in_any_phase(tmp_path: Path) -> None:
    """Threats 24 and 35: region, data policy and label, at the first choice, at a failover, in the cache.

    The request log names the seller of each answer, or the rule that left none.
    """
    elsewhere: dict[str, Any] = {"datacenters": (Datacenter("US"),)}
    policy = DataPolicy(retains_prompts=True, may_publish=False, training=False)
    keeping: dict[str, Any] = {"data_policy": policy}
    cache = CacheSettings(answers="all")
    async with fair(tmp_path, {}, {}, {}, listed=(elsewhere, keeping), cache=cache) as market:
        await market.on_offer(3)
        ann, *ruled_out = market.sellers
        here = await market.key_for("here", regions=("DE",))
        # A key without rules buys from the others, and the answer is cached.
        bought: dict[str, Any] = {"provider": {"order": [ruled_out[0].id[:12]]}, "temperature": 0}
        plain = await market.ask(**bought)
        assert text_of(plain) == ANSWER
        await market.logged(plain, "market", "complete", ruled_out[0].id[:12])
        again = await market.ask(**bought)
        await market.logged(again, "cache", "complete", "cache")
        before = [len(each.raw) for each in ruled_out]
        await check_no_key_finds_it(market, bought)
        # The same body from the same user, with a key that excludes that seller.
        rules: dict[str, Any] = {"provider": {"zdr": True, "sort": "price"}, "temperature": 0}
        for fields in (bought | {"provider": rules["provider"] | bought["provider"]}, rules):
            first = await market.ask(here, **fields)
            assert (text_of(first), first.headers.get("x-millrace-cache")) == (ANSWER, None)
            await market.logged(first, "market", "complete", ann.id[:12])
        # Half an answer, and no seller that may continue.
        ann.manners = Manners(fault="cut", at=2)
        half = await market.ask(here, max_tokens=60, **rules)
        assert text_of(half) == "The mill "
        await market.logged(half, "market", "failed", ann.id[:12])
        assert [len(each.raw) for each in ruled_out] == before


async def check_no_key_finds_it(market: Fair, bought: dict[str, Any]) -> None:
    """An answer from third parties is cached only for keys that may use them: same body, other rules."""
    own = await market.key_for("own", lanes=("cluster", "pool"))
    secret = await market.key_for("secret", privacy="internal")
    for key, extras, why in (
        (own, {}, "rule 'lanes'"),
        (secret, {}, "is labeled internal"),
        (None, {"privacy": "internal"}, "is labeled internal"),
        (None, {"privacy": "private"}, "is labeled private"),
    ):
        refused = await market.ask(key, **bought, millrace=extras)
        assert (refused.status, refused.headers.get("x-millrace-cache")) == (403, None)
        assert why in (await market.logged(refused, "none", "refused", "none")).error
