"""Two gateways with a credit line: both sellers, both buyers and the commands, without a marketplace."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from accounting.money import format_usd, parse_usd
from gateway.cli.main import app as millrace
from market.credit_lines.credit_line_service import CreditLineService
from market.credit_lines.partnership import Partnership
from market.protocol.channels.channel import settle
from market.protocol.channels.credit_line import CreditLine
from market.protocol.listings.listing import read_listing
from market.protocol.listings.prices import cost_nano
from market.protocol.records.amounts import Amount
from tests.market.buyer.stalls import QUESTION
from tests.market.credit_lines.two import TOKENS, Side, listed, partner, run, two
from tests.market.parties import id_of
from tests.market.parties import signed_record as say
from tests.market.seller.buyer import COUNTING, asking
from tests.market.seller.shop import open_shop

pytestmark = pytest.mark.anyio


async def most_nano(seller: Side) -> int:
    """What a request may come to."""
    prices = read_listing(await seller.shop.listed(), allows_loopback=True).pricing
    return cost_nano(prices, COUNTING.prompt_tokens(QUESTION), 0, TOKENS)


def befriend(ann: Side, bob: Side, owes_max_nano: int) -> None:
    """Ann offers, Bob signs, Ann learns of it; every text twice."""
    limit = format_usd(owes_max_nano)
    given = (bob.id, "--they-owe", limit, "--we-owe", limit, "--url", ann.shop.endpoint)
    invitation = run(ann.folder, "invite", *given)
    assert run(ann.folder, "invite", *given) == invitation
    assert listed(ann.folder)["state"] == "offered"
    refused = partner(bob.folder, "accept", invitation)
    assert refused.exit_code != 0  # it was not confirmed
    answer = run(bob.folder, "accept", invitation, "--yes", "--url", bob.shop.endpoint)
    for _ in range(2):
        assert run(bob.folder, "accept", invitation) == ""
        assert run(ann.folder, "accept", answer) == ""


async def test_partners_trade_without_a_marketplace(tmp_path: Path) -> None:
    async with two(tmp_path) as (ann, bob):
        limit_nano = await most_nano(bob) + 1000
        befriend(ann, bob, limit_nano)
        async with ann.buying() as anns, bob.buying() as bobs:
            # Nothing of a request can be promised beyond the line, by either.
            one = await anns.buy(bob)
            assert one.status == 200, one.body
            refused = await anns.buy(bob)
            assert (refused.status, b"no_credit" in refused.body) == (502, True)
            assert len(bob.shop.stage.requests) == 1

            # What Bob buys makes room for as much; then it is at its end again.
            back = await bobs.buy(ann)
            assert back.status == 200, back.body
            assert ann.position.may_buy_nano == limit_nano + back.cost_nano
            two_ = await anns.buy(bob)
            assert two_.status == 200, two_.body
            assert (await anns.buy(bob)).status == 502

            # A payment makes room once its receiver has said so, and the payer has heard it.
            bought_nano = one.cost_nano + two_.cost_nano
            owed_nano = bought_nano - back.cost_nano
            assert (ann.position.owed_nano, bob.position.owed_nano) == (owed_nano, -owed_nano)
            early = run(bob.folder, "paid", ann.id[:12], "--in-all", format_usd(owed_nano // 2))
            receipt = run(bob.folder, "paid", ann.id[:12], "--in-all", format_usd(owed_nano))
            assert partner(bob.folder, "paid", ann.id[:12], "--in-all", "0.00").exit_code == 1
            assert (await anns.buy(bob)).status == 502  # the text is still on its way
            for text in (receipt, early, receipt):
                run(ann.folder, "accept", text)
            assert (ann.position.owed_nano, bob.position.owed_nano) == (0, 0)
            three = await anns.buy(bob)
            assert three.status == 200, three.body

        # A buyer that restarts continues where it was, and so does one with a new key.
        rotated = CliRunner().invoke(millrace, ["identity", "rotate", "--data-dir", str(ann.folder)])
        assert rotated.exit_code == 0, rotated.output
        async with ann.buying() as anns:
            bought_nano += three.cost_nano
            assert ann.position.bought_nano == bob.position.sold_nano == bought_nano
            assert (await anns.buy(bob)).status == 502
            run(bob.folder, "paid", ann.id[:12], "--in-all", format_usd(bought_nano))
            run(ann.folder, "accept", run(bob.folder, "tell", ann.id[:12]))
            four = await anns.buy(bob)
            assert four.status == 200, four.body
            bought_nano += four.cost_nano

            mine, theirs = listed(ann.folder), listed(bob.folder)
            assert (mine["bought"], mine["sold"]) == (theirs["sold"], theirs["bought"])
            assert (mine["paid"], mine["received"]) == (theirs["received"], theirs["paid"])
            assert parse_usd(mine["bought"]) - parse_usd(mine["sold"]) == bought_nano - back.cost_nano
            assert mine["owed"] == format_usd(four.cost_nano - back.cost_nano)
            assert theirs["owed"] == format_usd(back.cost_nano - four.cost_nano)

            # After a partner ends a line it sells nothing more on it; what was paid before is owed back.
            run(bob.folder, "end", ann.id[:12])
            run(bob.folder, "accept", run(ann.folder, "tell", bob.id[:12]))
            assert (
                await anns.stalls.ask_for(await anns.listing_of(bob), model="test/demo", max_tokens=5)
            ).status == 502
            assert (listed(bob.folder)["state"], listed(ann.folder)["state"]) == ("ended", "open")


async def test_a_seller_holds_to_the_line_whatever_is_promised(tmp_path: Path) -> None:
    async with open_shop(tmp_path, marketplace_url=None) as shop:
        buyer, own = await shop.buyer(), shop.agent.own
        order_nano = cost_nano(buyer.listing.pricing, COUNTING.prompt_tokens(asking()), 0, 600)
        first, second = sorted((id_of("buyer"), own.id))
        line = CreditLine(first, second, Amount(order_nano), Amount(order_nano), buyer.made_ms)
        theirs = say("buyer", "credit_line", line, made_ms=buyer.made_ms, lasts_ms=86_400_000)
        desk = CreditLineService(tmp_path / "market", own)
        partnership, _ = desk.accept(Partnership(line, own.id, partner_signature=theirs), buyer.made_ms)
        buyer.rest_on(list(partnership.records), partnership.sold)
        bought = await buyer.buy(buyer.order())
        assert bought.status == 200
        assert (await buyer.buy(buyer.order())).error["code"] == "limit"
        paid_nano = settle(buyer.channel).amount_nano
        desk.acknowledge(partnership, paid_nano - 1, buyer.made_ms)
        assert (await buyer.buy(buyer.order())).error["code"] == "limit"
        desk.acknowledge(partnership, paid_nano, buyer.made_ms)
        assert (await buyer.buy(buyer.order())).status == 200
