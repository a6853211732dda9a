"""A seller's tokenizer.json is a program of a kind: whatever it does ends with one request."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from accounting.metering.counts import estimate_tokens
from accounting.metering.tokenizers import Pinned
from tests.market.buyer.stalls import ANSWER, learn, stalls
from tests.market.token_counting.strangers import aborting

pytestmark = pytest.mark.anyio


async def test_a_tokenizer_that_aborts_its_process_is_never_kept(tmp_path: Path) -> None:
    """474 bytes would end this process at every start."""
    async with stalls(tmp_path, {}, {}) as market:
        strange, honest = market.sellers
        content = aborting(tmp_path)
        path = tmp_path / "strange.json"
        path.write_bytes(content)
        strange.tokenizer = Pinned(path, hashlib.sha256(content).hexdigest())
        learn(market.app, [strange.listed()])
        for _ in range(2):
            bill = await market.ask(strange)
            assert (bill.status, bill.error and bill.error["code"]) == (502, "seller_no_tokenizer")
        assert [*(tmp_path / "market" / "tokenizers").iterdir()] == []
        assert market.nothing_is_open()
        assert (await market.ask(honest)).text == ANSWER


async def test_a_tokenizer_that_fails_in_the_middle_costs_its_seller_the_next_request(tmp_path: Path) -> None:
    """The delivered text is settled by its bytes, as all parties do if no tokenizer can count."""
    async with stalls(tmp_path, {"chunk_s": 0.05}) as market:
        (seller,) = market.sellers
        asking = asyncio.create_task(market.ask(seller))
        async with asyncio.timeout(60):
            while not seller.requests:
                await asyncio.sleep(0.01)
        refused = market.app.buyer._tokenizers.sandbox._refused
        refused[seller.tokenizer.sha256.lower()] = ("", "is rejected from now on: it takes too long")
        bill = await asking
        assert (bill.text, bill.usage["completion_tokens"]) == (ANSWER, estimate_tokens(ANSWER))
        again = await market.ask(seller)
        assert (again.status, again.error and again.error["code"]) == (502, "seller_no_tokenizer")
        assert market.nothing_is_open()
