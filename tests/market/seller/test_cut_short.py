"""Answers that end early: whichever party ends them, receipts state what was delivered."""

import asyncio
import json
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from market.protocol.channels.admission import PricedRequest
from market.protocol.channels.channel import settle
from market.protocol.channels.statements import Receipt
from market.protocol.channels.transcript import INTERIM_TOKENS
from market.protocol.listings.prices import cost_nano
from market.protocol.records.envelope import open_record
from market.seller.gateway_request import GatewayRequest
from market.seller.own_gateway import GatewayAway
from market.seller.upstream import Upstream
from runtime.hang_ups import UNPAID_MAX
from tests.market.seller.buyer import COUNTING, Buyer, Purchase
from tests.market.seller.shop import Shop, open_shop, until
from tests.market.seller.stage import END, HANG_UP, STALL, words

pytestmark = pytest.mark.anyio

WORDS = 4
PREEMPTED: dict[str, Any] = {"error": {"message": "the owner", "code": "preempted"}}


async def leave_after(buyer: Buyer, purchase: Purchase, shop: Shop, events: int) -> None:
    """Take so many events, each sent only after the one before it was taken, and hang up."""
    assert shop.stage.steps
    async with aclosing(buyer.stream(purchase)) as stream:
        for n in range(events):
            if n:
                shop.stage.steps.release()
            await anext(stream)


async def test_buyer_that_leaves_at_any_event_owes_what_was_delivered(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(WORDS), END]
        shop.stage.steps = asyncio.Semaphore(0)
        buyer = await shop.buyer()
        truth_nano = 0
        for events in range(1, WORDS + 2):
            shop.stage.stopped.clear()
            purchase = buyer.order()
            await leave_after(buyer, purchase, shop, events)
            # The owner's machine runs no more jobs.
            async with asyncio.timeout(60):
                await shop.stage.stopped.wait()
            await shop.is_empty()
            claim = (await shop.known(buyer.terms)).lanes[0].claim
            assert claim
            assert claim.receipt.is_final
            assert claim.receipt.seq == purchase.promise.voucher.seq
            assert claim.receipt.completion_tokens == purchase.tokens
            assert claim.receipt.transcript == purchase.answer.transcript()
            truth_nano += cost_nano(buyer.listing.pricing, purchase.prompt_tokens, 0, purchase.tokens)
            buyer.receive(purchase)
        assert (await buyer.hand_in()).status_code == 200
        due = settle(await shop.known(buyer.terms))
        assert (due.confirmed_nano, due.claimed_nano, due.disputed_nano) == (truth_nano, 0, 0)


async def test_a_buyer_who_leaves_before_the_first_word_again_and_again_is_refused(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(1), END]
        shop.stage.steps = asyncio.Semaphore(0)
        buyer, other = await shop.buyer(), await shop.buyer("other")
        for _ in range(UNPAID_MAX):
            shop.stage.stopped.clear()
            await leave_after(buyer, buyer.order(), shop, 1)
            await shop.is_empty()
        assert len(shop.stage.requests) == UNPAID_MAX
        refused = await buyer.buy(buyer.order())
        assert (refused.status, refused.error["code"]) == (429, "full")
        assert "first token" in refused.error["message"]
        assert len(shop.stage.requests) == UNPAID_MAX
        shop.stage.steps = None
        assert (await other.buy(other.order())).text == " word0"


@pytest.mark.parametrize(("last", "code"), [(PREEMPTED, "preempted"), (HANG_UP, "failed"), ("nonsense", "failed")])
async def test_what_came_before_the_gateway_broke_off_is_paid(tmp_path: Path, last: Any, code: str) -> None:
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(3), last]
        buyer = await shop.buyer()
        bought = await buyer.buy(buyer.order())
        assert bought.text == " word0 word1 word2"
        assert bought.cut
        assert bought.cut.code == code
        (final,) = buyer.sellers_word(bought)
        assert (final.receipt.is_final, final.receipt.completion_tokens) == (True, bought.tokens)
        assert bought.has_ended
        # The lane is free again, and the next voucher is worth what was signed.
        shop.stage.script = [*words(1), END]
        assert (await buyer.buy(buyer.order())).cut is None


async def test_nothing_delivered_costs_nothing(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [PREEMPTED]
        buyer = await shop.buyer()
        bought = await buyer.buy(buyer.order())
        assert bought.cut
        assert settle(await shop.known(buyer.terms)).amount_nano == 0
        assert not shop.stage.sales


async def test_silence_is_bridged_by_events(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        object.__setattr__(shop.agent.job_handler, "wait_s", 0.05)
        shop.stage.script = [*words(1), STALL]
        buyer = await shop.buyer()
        purchase = buyer.order()
        async with aclosing(buyer.stream(purchase)) as stream:
            async for _ in stream:
                if purchase.waits >= 3:
                    break
        async with asyncio.timeout(60):
            await shop.stage.stopped.wait()


async def test_draining_lets_answers_end_or_cuts_them_at_a_block(tmp_path: Path) -> None:
    async with open_shop(tmp_path, drain_s=0) as shop:
        shop.stage.script = [*words(2), STALL]
        buyer = await shop.buyer()
        purchase = buyer.order()
        async with aclosing(buyer.stream(purchase)) as stream:
            while len(purchase.pieces) < 2:
                await anext(stream)
            draining = asyncio.create_task(shop.agent.drain())
            await until(lambda: not shop.listings)
            assert (await buyer.buy(buyer.order(lane=1))).error["code"] == "draining"
            async for _ in stream:
                pass
        await draining
        assert purchase.cut
        assert purchase.cut.code == "preempted"
        assert purchase.has_ended
        # Marketplace and ledger know of it before the process ends.
        assert [json.loads(each["records"][0])["kind"] for each in shop.stage.settlements]
        assert len(shop.stage.sales) == 1
        assert COUNTING.delivered(purchase.answer.choices()).completion_tokens == purchase.tokens


async def test_key_that_changes_in_an_answer_loses_nothing(tmp_path: Path) -> None:
    """Threat 20: a job that began with the old key is signed with the new one, which no party knows yet."""
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(WORDS), END]
        shop.stage.steps = asyncio.Semaphore(1)
        buyer = await shop.buyer()
        purchase = buyer.order()
        async with aclosing(buyer.stream(purchase)) as stream:
            await anext(stream)
            shop.agent.own.rotate()
            for _ in range(WORDS):
                shop.stage.steps.release()
            async for _ in stream:
                pass
        assert (purchase.cut, purchase.has_ended) == (None, True)
        final = open_record(purchase.receipts[-1])
        assert final.key == shop.agent.own.signer.public_key.hex()
        assert final.read("receipt", Receipt).completion_tokens == purchase.tokens
        await shop.is_empty()
        await shop.agent.booking.book()
        assert len(shop.stage.sales) == 1


async def test_long_answers_are_signed_for_as_often_as_short_ones(tmp_path: Path) -> None:
    """Threat 6: of an answer of any length hardly more than 256 tokens are unproven at any time."""
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(1500), END]
        buyer = await shop.buyer()
        purchase = buyer.order(most_tokens=3000)
        async for _ in buyer.stream(purchase):
            pass
        token_counts = [open_record(raw).read("receipt", Receipt).completion_tokens for raw in purchase.receipts]
        assert token_counts[-1] == purchase.tokens > 5000
        assert max(after - before for before, after in pairwise(token_counts)) < 2 * INTERIM_TOKENS


async def test_owners_rules_end_what_is_being_answered(tmp_path: Path) -> None:
    """Threat 27: a laptop on battery runs no more jobs, and what it delivered is paid."""
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(2), STALL]
        buyer = await shop.buyer()
        purchase = buyer.order()
        async with aclosing(buyer.stream(purchase)) as stream:
            while len(purchase.pieces) < 2:
                await anext(stream)
            idle = await shop.agent.watch.gateway.idle()
            await shop.agent.watch.look(replace(idle, is_on_battery=True))
            async for _ in stream:
                pass
        assert purchase.cut
        assert purchase.cut.code == "preempted"
        assert purchase.has_ended
        assert purchase.tokens > 0
        # And who comes once it is on its plug again is answered to the end.
        await shop.agent.watch.look(idle)
        shop.stage.script = [*words(1), END]
        assert (await buyer.buy(buyer.order(lane=1))).cut is None


async def test_request_that_the_gateway_cannot_be_asked_ends_at_once(tmp_path: Path) -> None:
    """Threat 26: it does not hold its slot until a timeout."""
    async with open_shop(tmp_path) as shop:
        order = GatewayRequest("chat", {"messages": object()}, 1, PricedRequest("0" * 64, 1))
        async with Upstream.asking(shop.agent.watch.gateway, order) as upstream, asyncio.timeout(60):
            with pytest.raises(GatewayAway):
                await upstream.next(patience_s=300)
