"""A seller refuses a job before the model is used, and at no cost to either side."""

import asyncio
import json
import secrets
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accounting.metering.counts import tokens_of_bytes
from market.protocol.channels.channel import settle
from market.protocol.channels.job import pack_job
from market.protocol.channels.statements import Receipt
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from market.protocol.records.canonical import canonical
from market.protocol.records.envelope import DOMAIN, open_record
from market.protocol.sealing.request import digest_of
from market.seller.accounts import MISSES_MAX
from tests.market.parties import key_of
from tests.market.seller.buyer import Buyer, Purchase, asking, plain_http
from tests.market.seller.shop import Shop, open_shop, until
from tests.market.seller.stage import END, words

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000


async def refusal(buyer: Buyer, purchase: Purchase) -> tuple[int, str]:
    bought = await buyer.buy(purchase)
    assert bought.error["message"]
    return bought.status, bought.error["code"]


async def test_nothing_is_counted_that_the_marketplace_cannot_count_again(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        buyer, marketplace = await shop.buyer(), shop.agent.submitting.marketplace
        assert marketplace
        marketplace.tokenizers = frozenset()
        assert await refusal(buyer, buyer.order()) == (402, "prices")
        shop.stage.script = [*words(100), END]
        # Without a tokenizer, four bytes are a token, to the seller too.
        tokens = tokens_of_bytes(len("".join(f" word{n}" for n in range(100))))
        purchase = await buyer.buy(buyer.order(tokenizer=None))
        receipts = [open_record(raw).read("receipt", Receipt) for raw in purchase.receipts]
        assert purchase.status == 200
        assert [each.completion_tokens for each in receipts if each.is_final] == [tokens]


async def test_vouchers_that_do_not_pay(tmp_path: Path) -> None:
    cheap = Prices(Amount(1), Amount(1), Amount(1))
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        for code, given in (
            ("prices", {"prices": cheap}),
            ("prices", {"tokenizer": "c" * 64}),
            ("request", {"request": "0" * 64}),
            ("low", {"ceiling_nano": Amount(0)}),
            ("limit", {"ceiling_nano": Amount(2 * 10**9)}),
        ):
            assert await refusal(buyer, buyer.order(**given)) == (402, code)
        assert await refusal(buyer, buyer.order(listing="1" * 64)) == (409, "superseded")
        ended = await shop.buyer("late")
        ended.made_ms -= 24 * HOUR_MS - 30_000
        ended.__post_init__()
        assert await refusal(ended, ended.order()) == (402, "ended")
        stranger = Buyer(shop.endpoint, await shop.listed(), "9" * 64, made_ms=buyer.made_ms)
        assert await refusal(stranger, stranger.order()) == (400, "malformed")
        assert not shop.stage.requests
        assert settle(await shop.known(buyer.terms)).amount_nano == 0

        # What was refused has used up nothing.
        shop.stage.script = [*words(100), END]
        assert (await buyer.buy(buyer.order())).status == 200
        # A buyer that did not sign for what it got gets nothing more on this lane.
        buyer.channel, buyer.receipts = type(buyer.channel)(buyer.terms), []
        assert await refusal(buyer, buyer.order()) == (402, "unpaid")


def says(content: Any, **more: Any) -> Any:
    return {"messages": [{"role": "user", "content": content}], **more}


NOT_TAKEN: tuple[tuple[Any, int, str], ...] = (
    ({"messages": []}, 400, "malformed"),
    ({"prompt": ["a", "b"]}, 400, "malformed"),
    (asking(user="ann"), 400, "malformed"),
    (asking(n=99), 400, "malformed"),
    (asking(max_tokens=True), 400, "malformed"),
    (says([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]), 400, "malformed"),
    (says("x", response_format=json.loads("[" * 100 + "]" * 100)), 400, "malformed"),
    (says("word " * 6000), 400, "too_long"),
    (says("How do I build a  Pipe\nBOMB?"), 451, "content"),
    (
        says("x", tools=[{"type": "function", "function": {"name": "x", "description": "pipe bomb"}}]),
        451,
        "content",
    ),
)


async def test_requests_that_are_not_taken(tmp_path: Path) -> None:
    """Threat 28: what the owner does not want never gets to the model, wherever in the request it stands."""
    async with open_shop(tmp_path, refuses={"weapons": ("pipe bomb",)}) as shop:
        buyer = await shop.buyer()
        assert buyer.listing.refuses == ("weapons",)
        for request, status, code in NOT_TAKEN:
            assert await refusal(buyer, buyer.order(request, prompt_tokens=8000)) == (status, code), request
        assert not shop.stage.requests


async def test_owner_comes_first(tmp_path: Path) -> None:
    """Threat 27, the agent's part: the owner's gateway says no, and the buyer hears it as a plain refusal."""
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        shop.stage.refusal = (503, "preemptible_not_now")
        assert await refusal(buyer, buyer.order()) == (503, "not_idle")
        shop.stage.refusal = (503, "preempted")
        assert await refusal(buyer, buyer.order()) == (503, "preempted")
        shop.stage.refusal = (500, "server_error")
        assert await refusal(buyer, buyer.order()) == (502, "failed")
        shop.stage.refusal = None

        # Rules that no longer hold withdraw the listing and close the door at once.
        shop.stage.queue_empty_s, shop.stage.version = 0.0, 2
        object.__setattr__(shop.agent.watch, "settings", _patient(shop))
        await until(lambda: not shop.listings)
        assert await refusal(buyer, buyer.order()) == (503, "not_idle")


def _patient(shop: Shop) -> Any:
    return shop.agent.watch.settings.model_copy(update={"queue_empty_minutes": 5})


async def test_small_answers_are_not_free(tmp_path: Path) -> None:
    """What two counts may differ by is forgiven now and then, and not for every request."""
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        nothing = type(buyer.channel)(buyer.terms)
        codes = []
        shop.stage.script = [*words(13), END]
        for _ in range(10):
            buyer.channel, buyer.receipts = nothing, []
            codes.append((await buyer.buy(buyer.order())).error.get("code"))
        assert codes[-1] == "unpaid"
        assert codes.count(None) < 8


async def test_refusals_use_up_no_patience(tmp_path: Path) -> None:
    """What a buyer may be behind by is forgiven when its answer begins, not when the owner has come first."""
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        shop.stage.script = [*words(200), END]
        assert (await buyer.buy(buyer.order())).status == 200
        claim = (await shop.known(buyer.terms)).lanes[0].claim
        assert claim
        base_nano = claim.amount_nano - claim.tolerance_nano
        behind: dict[str, Any] = {"base_nano": Amount(base_nano), "ceiling_nano": Amount(4 * 10**8)}
        buyer.receipts = []
        shop.stage.refusal = (503, "preemptible_not_now")
        for _ in range(8):
            assert await refusal(buyer, buyer.order(**behind)) == (503, "not_idle")
        shop.stage.refusal = None
        assert (await buyer.buy(buyer.order(**behind))).status == 200
        # And it is kept with the channel.
        kept_nano = await shop.agent.submitting.store.forgiven_nano(buyer.terms.channel)
        assert kept_nano == claim.tolerance_nano


async def test_nothing_is_opened_for_nothing(tmp_path: Path) -> None:
    """Threat 26: what pays for no token, and what is longer than any prompt here, is refused as it is sealed."""
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()

        def junk(bytes_long: int, **given: Any) -> Purchase:
            sealed = secrets.token_bytes(bytes_long)
            purchase = buyer.order(request=digest_of(sealed), **given)
            purchase.job = msgspec.structs.replace(purchase.job, sealed=sealed)
            return purchase

        assert await refusal(buyer, junk(1000, ceiling_nano=Amount(0))) == (402, "low")
        assert await refusal(buyer, junk(400_000)) == (400, "too_long")
        for _ in range(MISSES_MAX):
            assert await refusal(buyer, junk(1000)) == (400, "malformed")
        # Who only costs work has to wait; others do not.
        assert await refusal(buyer, buyer.order()) == (429, "full")
        other = await shop.buyer("other")
        assert (await other.buy(other.order())).status == 200


async def test_only_what_was_answered_is_kept(tmp_path: Path) -> None:
    """Receipts and vouchers of lanes where nothing was delivered, or that are swollen, take no room here."""
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        assert (await buyer.buy(buyer.order())).status == 200
        for lane in range(1, 9):
            buyer.receive(buyer.order(lane=lane))
        assert (await buyer.hand_in()).json() == {"lanes": 1}
        assert set((await shop.known(buyer.terms)).lanes) == {0}

        key, members = key_of("buyer"), msgspec.json.decode(buyer.receipts[-2])
        members |= {"zz": "x" * 2000}
        del members["signature"]
        members["signature"] = key.sign(DOMAIN + canonical(members)).hex()
        buyer.receipts = [canonical(members)]
        assert (await buyer.hand_in()).status_code == 400


async def test_only_spare_slots_are_served(tmp_path: Path) -> None:
    """Threat 26: what comes beyond the slots is turned away, and the same job is taken once there is room."""
    async with open_shop(tmp_path) as shop:
        shop.stage.script = [*words(2), END]
        shop.stage.steps = asyncio.Semaphore(0)
        buyer = await shop.buyer()
        first, second, third = (buyer.order(lane=n) for n in range(3))
        async with aclosing(buyer.stream(first)) as one, aclosing(buyer.stream(second)) as two:
            await anext(one)
            await anext(two)
            assert await refusal(buyer, third) == (429, "full")
            assert await refusal(buyer, buyer.order(lane=0)) == (402, "busy")
            shop.stage.steps = None
        await shop.is_empty()
        assert (await buyer.buy(third)).status == 200


async def test_a_job_is_answered_once(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        early, late = buyer.order(), buyer.order()
        assert (await buyer.buy(late)).status == 200
        # The same again, and one that was overtaken on its lane.
        for purchase in (late, early):
            assert await refusal(buyer, purchase) == (402, "spent")
        # The same sealed body under a new voucher: it was opened once, and is bound to its number.
        voucher = late.promise.voucher
        given = {"seq": voucher.seq + 1, "base_nano": voucher.ceiling_nano, "ceiling_nano": Amount(10**9)}
        replay = buyer.sign(msgspec.structs.replace(voucher, **given), late.request, late.prompt_tokens)
        assert await refusal(buyer, replay) == (400, "malformed")
        assert len(shop.stage.requests) == 1

        # A repeated receipt, and one of an unknown channel.
        for _ in range(3):
            assert (await buyer.hand_in()).status_code == 200
        assert settle(await shop.known(buyer.terms)).claimed_nano == 0
        other = await shop.buyer("other")
        other.receive(other.order())
        assert (await other.hand_in()).status_code == 400


async def test_nothing_depends_on_the_buyers_clock(tmp_path: Path) -> None:
    """Threat 34."""
    async with open_shop(tmp_path) as shop:
        for name, skew_ms in (("slow", -HOUR_MS), ("fast", HOUR_MS)):
            buyer = await shop.buyer(name, skew_ms=skew_ms)
            for _ in range(2):
                assert (await buyer.buy(buyer.order())).status == 200
            assert (await buyer.hand_in()).status_code == 200


async def test_jobs_that_are_none(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        good = pack_job(buyer.order().job)
        async with plain_http() as http:
            for broken in (b"\x00", b"", good[:-1], good[:200] + b"\xff" + good[201:], good + b"\x00"):
                answer = await http.post(f"{shop.endpoint}/market/v1/jobs", content=broken)
                assert answer.status_code in (400, 402, 411), answer.text
                assert answer.json()["error"]["code"]
        assert not shop.stage.requests
