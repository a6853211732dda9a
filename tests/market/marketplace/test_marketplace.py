"""/market/v1 at a marketplace: reserved credits and settled receipts; the ledger balances at every step."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accounting.metering.delivered import Delivered
from accounting.money import format_usd, parse_usd
from accounting.spending.credit_grants import CreditGrant
from gateway.quota import Quota
from market.marketplace.periodic import PeriodicTasks
from market.marketplace.sellers import proof_message
from market.protocol.channels.terms import ChannelTerms, read_allocation
from market.protocol.counting.answer import transcript_of
from market.protocol.identity.statements import revoke
from tests.market.marketplace.conftest import USD, Hall, open_hall, post
from tests.market.marketplace.rules.dealing import Dealing
from tests.market.parties import NOW_MS, STANDING, id_of, key_of
from tests.market.trade import DIGEST, cost_nano

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_what_was_signed_is_paid_from_what_was_put_aside(hall: Hall) -> None:
    allocation = await hall.allocated("ann", "0.50")
    async with hall.served.client() as client:
        marketplace = (await client.get("/market/v1/marketplace")).json()
    terms, words = read_allocation(allocation, marketplace["identity"], STANDING)
    assert (words.limit_nano, terms.buyer, terms.seller) == (USD // 2, id_of("buyer"), id_of("seller"))
    assert await hall.held("user:ann:paid") == USD // 2

    dealing = Dealing(terms)
    for lane in (0, 1, 0):
        dealing.serve(lane)
    answer = await hall.settle(allocation, dealing.records)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "channel": terms.channel,
        "confirmed": dealing.due_usd,
        "claimed": "0.00",
        "disputed": "0.00",
        "settled": dealing.due_usd,
    }
    fee_nano = dealing.due_nano * 500 // 10_000
    standing = await hall.standing()
    assert (standing["seller:sam:maturing"], standing["income:market_fee"]) == (
        dealing.due_nano - fee_nano,
        fee_nano,
    )
    assert standing["user:ann:paid"] == 10 * USD - dealing.due_nano
    assert await hall.held("user:ann:paid") == USD // 2 - dealing.due_nano
    assert (await hall.settle(allocation, dealing.records)).json()["settled"] == dealing.due_usd
    assert await hall.standing() == standing
    await hall.check()


async def test_missing_and_promotional_credits_are_not_allocated(hall: Hall) -> None:
    ends_ns = time.time_ns() + 30 * 86_400 * 10**9
    await hall.served.services.ledger.grant(CreditGrant("l1", "bob", 5 * USD, ends_ns))
    for user_id, limit in (("ann", "10.01"), ("bob", "0.01")):
        answer = await hall.allocate(user_id, limit)
        assert (answer.status_code, answer.json()["error"]["code"]) == (402, "insufficient_credit")
    assert (await hall.allocate("ann", "10.00")).status_code == 200
    await hall.check()


async def test_an_allocation_is_asked_for_once_under_its_key(hall: Hall) -> None:
    async with hall.buying("ann") as ann, hall.buying("bob") as bob:
        await hall.credit("bob", USD)
        body = {"buyer": id_of("buyer"), "seller": id_of("seller"), "limit": "1.00"}
        first, again = [await post(ann, "/allocations", "one", **body) for _ in range(2)]
        assert first.json() == again.json()
        other = await post(ann, "/allocations", "one", **body | {"limit": "2.00"})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert (await post(bob, "/allocations", "one", **body)).json() != first.json()
    assert await hall.held("user:ann:paid") == USD


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"limit": "0"}, "limit"),
    ({"limit": 0.5}, "limit"),
    ({"limit": "٥"}, "limit"),
    ({"limit": "-1.00"}, "limit"),
    ({"limit": "1e3"}, "limit"),
    ({"limit": "99999999.00"}, "limit"),
    ({"hours": 0}, "hours"),
    ({"hours": 73}, "hours"),
    ({"buyer": "AB" * 32}, "buyer"),
    ({"epoch": 7}, "epoch"),
)


async def test_what_is_wrong_about_an_allocation_is_named(hall: Hall) -> None:
    async with hall.buying("ann") as ann:
        for changes, param in WRONG:
            body = {"buyer": id_of("buyer"), "seller": id_of("seller"), "limit": "1.00"} | changes
            answer = await post(ann, "/allocations", **body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), changes


async def test_a_buyer_cannot_buy_from_itself_or_from_an_unknown_seller(hall: Hall) -> None:
    await hall.credit("sam", USD)
    own = await hall.allocate("sam", "1.00")
    assert (own.status_code, own.json()["error"]["code"]) == (409, "own_seller")
    assert (await hall.allocate("ann", "1.00", seller="nobody")).status_code == 404
    async with hall.served.machine as machine:
        suspended = await machine.put(
            "/market/v1/sellers/sam/suspended", json={"why": "odd"}, headers={"Idempotency-Key": "b"}
        )
    assert suspended.status_code == 200, suspended.text
    refused = await hall.allocate("ann", "1.00")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "seller_barred")


@pytest.mark.parametrize("limits", [{"models": ("gemma",)}, {"regions": ("eu",)}, {"privacy": "internal"}, None])
async def test_a_key_whose_limits_the_marketplace_cannot_hold_allocates_nothing(hall: Hall, limits: Any) -> None:
    request = {"buyer": id_of("buyer"), "seller": id_of("seller"), "limit": "5.00"}
    async with hall.of("ann") if limits is None else hall.buying("ann", **limits) as ann:
        answer = await post(ann, "/allocations", **request)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "policy_forbids")
    assert await hall.held("user:ann:paid") == 0


async def test_a_buyer_with_a_budget_does_not_spend_beyond_it(hall: Hall) -> None:
    client = hall.buying("ann")
    key_id = hall.served.services.keys.rows(user_id="ann")[-1].key_id
    hall.served.services.directory.quotas.set(Quota(f"key:{key_id}", "spend", USD, "day"))
    async with client as ann:
        answer = await post(ann, "/allocations", buyer=id_of("buyer"), seller=id_of("seller"), limit="5.00")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "policy_forbids")


async def test_an_identity_earns_for_one_account_which_has_signed_for_it(hall: Hall) -> None:
    assert (await hall.register("bob", "seller")).json()["error"]["code"] == "identity_taken"
    own = hall.marketplace.context.speaker.id
    async with hall.of("bob") as bob:
        for name, signer, voice in (
            ("other", "seller", own),
            ("seller", "other", own),
            ("other", "other", "0" * 64),
        ):
            proof = key_of(signer).sign(proof_message(voice, "bob")).hex()
            body = {"identity": id_of(name), "key": key_of(signer).public_key.hex(), "proof": proof}
            assert (await post(bob, "/sellers", **body)).json()["error"]["code"] == "statement_invalid"
    for n in range(7):
        assert (await hall.register("sam", f"seller-{n}")).status_code == 200
    assert (await hall.register("sam", "one-too-many")).json()["error"]["code"] == "too_many_identities"
    async with hall.of("sam") as sam:
        mine = (await sam.get("/market/v1/sellers/me")).json()
    assert (len(mine["identities"]), mine["probation"], mine["lacking"]["jobs"]) == (8, True, 20)


async def test_records_that_are_not_the_channels_are_refused_by_name(hall: Hall) -> None:
    allocation = await hall.allocated("ann", "0.50")
    terms = ChannelTerms(id_of("buyer"), id_of("seller"), allocation.digest)
    dealing = Dealing(terms)
    promise, receipt, _ = dealing.serve()
    elsewhere = Dealing(replace(terms, backing="0" * 64)).serve()
    stranger = Dealing(terms, buyer="stranger").serve()
    for records in (elsewhere, stranger, [receipt]):
        answer = await hall.settle(allocation, records)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "statement_invalid"), answer.text
    forged = promise.raw.replace(b'"seq":1', b'"seq":2')
    body = {"allocation": allocation.raw.decode(), "records": [forged.decode()]}
    async with hall.served.client() as client:
        answer = await client.post("/market/v1/settlements", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "signature")
        body["allocation"] = dealing.records[0].raw.decode()
        assert (await client.post("/market/v1/settlements", json=body)).status_code == 404
    assert (await hall.standing()).get("seller:sam:maturing", 0) == 0


async def test_a_buyer_who_revokes_its_key_pays_for_what_it_signed(hall: Hall) -> None:
    allocation = await hall.allocated("ann", "0.50")
    dealing = Dealing(ChannelTerms(id_of("buyer"), id_of("seller"), allocation.digest))
    dealing.serve()
    buyer, seller = (
        revoke(id_of(name), key_of(name).public_key, key_of(name), NOW_MS) for name in ("buyer", "seller")
    )
    refused = await hall.settle(allocation, dealing.records, seller)
    assert refused.json()["error"]["code"] == "statement_invalid", (
        "what a seller's stolen key says is worth nothing"
    )
    answer = await hall.settle(allocation, dealing.records, buyer)
    assert answer.json()["settled"] == dealing.due_usd


async def test_earnings_are_shown_and_become_payable(tmp_path: Path, dsn: str) -> None:
    async with open_hall(tmp_path, dsn, maturity_days_new=0, reserve_bps=0) as hall:
        await hall.credit("ann", USD)
        await hall.register("sam", "seller")
        allocation = await hall.allocated("ann", "0.50")
        dealing = Dealing(ChannelTerms(id_of("buyer"), id_of("seller"), allocation.digest))
        dealing.serve()
        await hall.settle(allocation, dealing.records)
        await asyncio.to_thread(PeriodicTasks(hall.marketplace, 1.0).look)
        async with hall.of("sam") as sam:
            mine = (await sam.get("/market/v1/sellers/me")).json()
        net_nano = dealing.due_nano - dealing.due_nano * 500 // 10_000
        assert (mine["earned"]["payable"], mine["earned"]["maturing"]) == (format_usd(net_nano), "0.00")
        async with hall.served.machine as machine:
            headers = {"Idempotency-Key": "f"}
            body = {"why": "another model"}
            answer = await machine.post("/market/v1/sellers/sam/forfeit", json=body, headers=headers)
        assert answer.json()["sales"] == 0, "what has matured is the seller's"
        await hall.check()


async def test_a_sellers_own_ledger_has_each_sale_once(hall: Hall) -> None:
    sale = {"channel": "ab" * 32, "lane": 3, "seq": 1, "amount": "0.25", "model": "tiny"}
    async with hall.served.machine as machine, hall.of("ann") as ann:
        events = [(await machine.post("/admin/market/sales", json=sale)).json()["event"] for _ in range(2)]
        assert events[0] == events[1]
        assert (await machine.post("/admin/market/sales", json=sale | {"amount": "0.26"})).status_code == 409
        assert (await machine.post("/admin/market/sales", json=sale | {"lane": 64})).json()["error"][
            "param"
        ] == "lane"
        assert (await ann.post("/admin/market/sales", json=sale)).status_code == 403
    standing = await hall.standing()
    assert (standing["asset:market_recv"], standing["income:market_sales"]) == (USD // 4, USD // 4)
    await hall.check()


async def test_a_dispute_is_counted_by_the_tokenizer_that_the_voucher_names(hall: Hall) -> None:
    (sha256,) = hall.marketplace.tokenizers
    async with hall.served.client() as anybody:
        assert (await anybody.get("/market/v1/marketplace")).json()["tokenizers"] == [sha256]
    words = "the mill grinds what the race brings " * 100
    allocation = await hall.allocated("ann", "0.50")
    terms = ChannelTerms(id_of("buyer"), id_of("seller"), allocation.digest)
    text_hash = transcript_of(DIGEST, {0: Delivered(words)})
    served = Dealing(terms, tokenizer=sha256).serve(0, 0, 10, tells=2000, transcript=text_hash)
    unknown = Dealing(terms, tokenizer="c" * 64).serve(1, 0, 10, tells=2000, transcript=text_hash)
    await hall.settle(allocation, [*served, *unknown])
    body = {"allocation": allocation.raw.decode(), "lane": 0, "texts": {"0": {"content": words}}}
    async with hall.of("ann") as ann, hall.of("sam") as sam:
        refused = await ann.post("/market/v1/disputes", json=body | {"lane": 1})
        assert refused.json()["error"]["code"] == "no_tokenizer"
        opened = await ann.post("/market/v1/disputes", json=body)
        assert (opened.status_code, opened.json()["status"]) == (200, "open"), opened.text
        decided = (await sam.post("/market/v1/disputes", json=body)).json()
        wrong = await sam.post("/market/v1/disputes", json=body | {"texts": {"0": {"text": words}}})
    assert (decided["reason"], decided["loser"]) == ("recounted", "seller")
    assert (await hall.settle(allocation, [])).json()["settled"] == format_usd(
        parse_usd(decided["amount"]) + cost_nano(0, 10)
    )
    assert wrong.json()["error"]["param"] == "texts.0.text"
    await hall.check()
