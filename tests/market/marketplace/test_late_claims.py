"""A seller claims a request that its buyer has gone on from: the buyer's process answers with receipts alone."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from accounting.metering.delivered import Delivered
from accounting.metering.tokenizers import load_counter
from market.buyer.channels import pack_records
from market.buyer.dispute_responder import DisputeResponder
from market.buyer.marketplace_client import BuyerMarketplaceClient
from market.buyer.store import BegunJob, BuyingStore, EndedJob
from market.network.outbound import Outbound
from market.network.record_keeper import RecordKeeper
from market.protocol.channels.statements import Receipt
from market.protocol.channels.terms import ChannelTerms, read_allocation
from market.protocol.counting.answer import transcript_of
from market.protocol.counting.token_count import Counting
from market.protocol.records.envelope import Record
from tests.accounting.tokenizer import make_tokenizer
from tests.market.marketplace.conftest import USD, Hall
from tests.market.marketplace.relays import served
from tests.market.marketplace.rules.dealing import Dealing
from tests.market.parties import STANDING, signed_record
from tests.market.trade import DIGEST, cost_nano

pytestmark = pytest.mark.anyio

CAME = "the mill grinds what the river brings. " * 20
MADE_UP = "the mill grinds what the race brings " * 400


def keep(store: BuyingStore, terms: ChannelTerms, allocation: Record, jobs: list[list[Record]]) -> None:
    """What the buyer's process has on disk of its requests on lane 0."""
    ends_ms = time.time_ns() // 10**6 - 2 * 24 * 3_600_000
    store.add_channel(
        id=terms.channel,
        seller=terms.seller,
        buyer=terms.buyer,
        backing=terms.backing,
        records=pack_records([allocation.raw]),
        limit_nano=USD,
        expires_ms=ends_ms,
    )
    for seq, (promise, claim, own) in enumerate(jobs, 1):
        begun = BegunJob(terms.channel, 0, seq, f"r{seq}", "m", 0, promise.raw)
        store.begin(begun)
        store.end(begun, EndedJob(own.raw, claim.raw, 0, ""))


async def test_a_made_up_text_about_an_earlier_request_gains_nothing(hall: Hall, tmp_path: Path) -> None:
    await hall.credit("sam", USD)
    counting = Counting(load_counter(make_tokenizer(tmp_path)))
    came, made_up = (counting.delivered([Delivered(text)]).completion_tokens for text in (CAME, MADE_UP))
    allocation = await hall.allocated("ann", "1.00")
    terms, _ = read_allocation(allocation, hall.marketplace.context.speaker.id, STANDING)
    dealing = Dealing(terms, tokenizer=counting.tokenizer)
    jobs = [dealing.serve(0, 0, came, transcript=transcript_of(DIGEST, {0: Delivered(CAME)})) for _ in range(2)]
    (promise, _, own), (next_promise, _, next_own) = jobs
    named = terms.channel, 0, 1, 1, promise.digest
    transcript = transcript_of(DIGEST, {0: Delivered(MADE_UP)})
    lie = signed_record("seller", "receipt", Receipt(*named, 0, 0, made_up, transcript, is_final=True), "0", 1)
    store, opened = BuyingStore(tmp_path / "buying.db"), {"allocation": allocation.raw.decode(), "lane": 0}
    opened |= {"texts": {"0": {"content": MADE_UP}}}
    keep(store, terms, allocation, jobs)

    async with served(hall.served.app) as url, Outbound(allows_loopback=True, named=[url]) as outbound:
        keeper = RecordKeeper(tmp_path / "known.db", lambda: 0)
        marketplace = BuyerMarketplaceClient(url, hall.served.key_of("ann"), "", outbound, store, keeper)
        disputing = DisputeResponder(marketplace, store, lambda: time.time_ns() // 10**6)
        for records in ([promise, own], [next_promise, next_own], [promise, lie]):
            assert (await hall.settle(allocation, records)).status_code == 200
        await disputing.look()
        assert (await lane_of(hall, allocation))["dispute"] is None, "nothing is opened by us"
        async with hall.of("sam") as sam:
            answer = await sam.post("/market/v1/disputes", json=opened)
        assert (answer.status_code, answer.json()["status"]) == (200, "open")
        await disputing.look()

    lane = await lane_of(hall, allocation)
    assert (lane["standing"], lane["dispute"]["reason"], lane["dispute"]["loser"]) == (
        "settled",
        "agreed_before",
        "seller",
    )
    paid_nano = 10 * USD - (await hall.standing())["user:ann:paid"]
    assert paid_nano == dealing.due_nano == 2 * cost_nano(0, came)
    await hall.check()
    store.close()


async def lane_of(hall: Hall, allocation: Record) -> dict[str, Any]:
    async with hall.of("ann") as ann:
        answer: httpx.Response = await ann.get(f"/market/v1/disputes/{allocation.digest}")
    (lane,) = json.loads(answer.content)["lanes"]
    return dict(lane)
