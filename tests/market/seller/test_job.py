"""A job from its bytes to its final receipt, over a real socket."""

from dataclasses import replace
from pathlib import Path

import pytest

from market.credit_lines.partnership import Partnership
from market.protocol.channels.channel import settle
from market.protocol.channels.credit_line import CreditLine
from market.protocol.listings.prices import cost_nano
from market.protocol.records.amounts import Amount
from tests.market.parties import id_of, signed_record
from tests.market.seller.shop import open_shop
from tests.market.seller.stage import END, MODEL, words

pytestmark = pytest.mark.anyio


async def test_completions_are_sold_too(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [{"choices": [{"index": 0, "text": text}]} for text in ("Once ", "upon")]
        buyer = await shop.buyer()
        bought = await buyer.buy(buyer.order({"prompt": "Tell a story.", "max_tokens": 5}))
        assert (bought.text, bought.cut) == ("Once upon", None)
        assert shop.stage.requests[0]["prompt"] == "Tell a story."
        (final,) = buyer.sellers_word(bought)
        assert final.receipt.prompt_tokens == bought.prompt_tokens


async def test_partners_need_no_marketplace(tmp_path: Path) -> None:
    async with open_shop(tmp_path, marketplace_url=None) as shop:
        buyer, own = await shop.buyer(), shop.agent.own
        first, second = sorted((id_of("buyer"), own.id))
        line = CreditLine(first, second, Amount(10**9), Amount(10**9), buyer.made_ms)
        lasts_ms = 86_400_000
        by_buyer = signed_record("buyer", "credit_line", line, made_ms=buyer.made_ms, lasts_ms=lasts_ms)
        ours = own.say("credit_line", "it", 0, line, buyer.made_ms, buyer.made_ms + lasts_ms)
        assert (await buyer.buy(buyer.order())).error["code"] == "refused"  # no allocation counts here
        buyer.rest_on([by_buyer, ours], line.bought_by(id_of("buyer")))
        assert (await buyer.buy(buyer.order())).error["code"] == "refused"
        partners = shop.agent.partners
        partnership = partners.keep(Partnership(line, own.id, ours, by_buyer))
        bought = await buyer.buy(buyer.order())
        assert (bought.status, bought.has_ended) == (200, True)
        # A line that the seller has not signed is none, nor one that its owner has ended.
        buyer.rest_on([by_buyer, by_buyer], line.bought_by(id_of("buyer")))
        assert (await buyer.buy(buyer.order())).error["code"] == "malformed"
        partners.keep(replace(partnership, is_ended=True))
        buyer.rest_on([by_buyer, ours], line.bought_by(id_of("buyer")))
        assert (await buyer.buy(buyer.order())).error["code"] == "ended"


async def test_a_sealed_job_is_answered_and_both_sign_the_same(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(200), END]
        buyer = await shop.buyer()
        bought = await buyer.buy(buyer.order(most_tokens=3000))
        assert (bought.status, bought.cut, bought.has_ended) == (200, None, True)
        assert bought.text == "".join(f" word{n}" for n in range(200))

        # Interim receipts while it came, and a final one that says what the buyer counts for itself.
        *interim, final = buyer.sellers_word(bought)
        assert interim
        assert not any(each.receipt.is_final for each in interim)
        assert final.receipt.is_final
        assert final.receipt.completion_tokens == bought.tokens
        assert final.receipt.transcript == bought.answer.transcript()
        assert final.receipt.ledger_checkpoint == "b" * 64

        # The owner's gateway got what it knows, under its own name of the model, and nothing of who asks.
        (request,) = shop.stage.requests
        assert request["model"] == MODEL
        assert request["stream"] is True
        assert request["max_tokens"] == 600

        # The next request pays on top of what both have signed.
        again = await buyer.buy(buyer.order(most_tokens=3000))
        assert again.status == 200
        one_nano = cost_nano(buyer.listing.pricing, bought.prompt_tokens, 0, bought.tokens)
        assert settle(buyer.channel).amount_nano == 2 * one_nano
