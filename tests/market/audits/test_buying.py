"""Audits in the buyer's process, at sellers over real sockets: who cheats gets nothing more; costs are booked."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accounting.errors import IdempotencyConflict
from accounting.ledger.balances import balance
from accounting.ledger.postings import Posted, Posting
from gateway.lanes.market.draw import drawn, excluded
from gateway.lanes.market.lane import MarketLane
from market.audits.audit_target import AUDIT_ID, AuditTarget
from market.audits.confirmation import confirm_failures
from market.audits.findings_publisher import FindingsPublisher
from market.audits.own_engine import EngineAnswer
from market.audits.probe_store import ProbeStore
from market.audits.probes import Probe, sold_as
from market.buyer.audits import Audits
from market.buyer.orders import BuyerLimits
from market.buyer.owed_reconciler import OwedReconciler
from market.network.identity import OwnIdentity
from market.protocol.audits.canaries import Canary, freeze_texts
from market.protocol.audits.evidence import PASSED_MIN
from market.protocol.audits.verdicts import Audit, after_audit, after_request, new_case
from market.protocol.listings.listing import Evidence
from market.protocol.offers import Offers
from market.protocol.records.envelope import Record
from tests.fakes.market_seller import MarketSeller
from tests.market.buyer.stalls import ANSWER, Stalls, learn, send_request, stalls
from tests.market.buyer.test_lane import fair

pytestmark = pytest.mark.anyio

SOLD_AS = sold_as("a" * 64, "bf16")
ELSE = ("Wind ", "and ", "water ", "are ", "for ", "nothing.")
BOUNDS = BuyerLimits(first_byte_s=2, silence_s=0.5, audit_pause_s=0.001)
DAY_NANO = 10**9
REQUESTS_MAX = 300


def canary(number: int) -> Canary:
    found = freeze_texts(f"What is sentence {number} about mills?", [ANSWER, ANSWER])
    assert found is not None
    return found


def fill(folder: Path, quantization: str = "bf16") -> None:
    """The honest seller's answer to anything is one sentence: that is what its model says."""
    folder.mkdir(parents=True, exist_ok=True)
    probe_store = ProbeStore(folder / "audits.db")
    for number in range(30):
        probe_store.add_probe(Probe(f"c{number}", sold_as("a" * 64, quantization), canary(number)))
    probe_store.close()


async def offers_of(market: Stalls) -> Offers:
    return msgspec.json.decode((await send_request(market.app, "GET", "/offers")).body, type=Offers)


def audits_of(market: Stalls) -> Audits:
    assert market.app.audits
    return market.app.audits


async def suspended_after(market: Stalls, cheat: MarketSeller, honest: MarketSeller) -> int:
    """How many requests to each it took."""
    listings = {each.id: market.listing_of(each) for each in (cheat, honest)}
    for number in range(REQUESTS_MAX):
        for listing in listings.values():
            assert (await market.ask_for(listing)).status == 200
        await audits_of(market).settled()
        if any(row.suspended_why for row in (await offers_of(market)).offers):
            return number + 1
    raise AssertionError("no cheat was found")


async def test_who_sells_another_model_gets_nothing_more(tmp_path: Path) -> None:
    fill(tmp_path / "market")
    given: dict[str, Any] = {"bounds": BOUNDS, "audit_nano_per_day": DAY_NANO}
    async with stalls(tmp_path, {}, {"texts": ELSE}, **given) as market:
        honest, cheat = market.sellers
        listing = market.listing_of(cheat)
        assert await suspended_after(market, cheat, honest) <= REQUESTS_MAX
        known = await offers_of(market)
        (row,) = [row for row in known.offers if row.seller == cheat.id]
        assert row.suspended_why.startswith(
            "mill-1b: the probability of this result for an honest seller is below"
        )
        assert [each.reason for each in known.excluded if each.seller == cheat.id] == ["suspended"]
        assert [each.seller for each in drawn(known.offers, lambda: 0.5)] == [honest.id]
        assert excluded(known.offers)[row.listing] == f"suspended: {row.suspended_why}"
        served = len(cheat.requests)
        assert (await market.ask_for(listing)).status == 502
        assert len(cheat.requests) == served
        # An audit's request looks like any other, and no honest seller is suspended.
        usual = {"model", "stream", "messages", "max_tokens", "temperature"}
        assert all(request.keys() <= usual for request in cheat.requests)
        (good,) = [row for row in known.offers if row.seller == honest.id]
        assert (good.audits_bad, good.suspended_why) == (0.0, "")
        store = market.app.buyer._means.store
        spent_nano = store.audits_nano(0)
        assert spent_nano > 0
        owed = store.owed("", (), 10**4, 0)
        assert sum(each.amount_nano for each in owed if each.id.startswith(AUDIT_ID)) == spent_nano
    # It is remembered, and it is the owner who forgives.
    async with stalls(tmp_path, {}, {"texts": ELSE}, **given) as market:
        honest, cheat = market.sellers
        assert [row.seller for row in (await offers_of(market)).offers if row.suspended_why] == [cheat.id]
        await check_confirmed(ProbeStore(tmp_path / "market" / "audits.db"), cheat.id)
        assert ProbeStore(tmp_path / "market" / "audits.db").reinstate(cheat.id)
        await audits_of(market).load()
        assert not any(row.suspended_why for row in (await offers_of(market)).offers)


async def check_confirmed(probe_store: ProbeStore, cheat: str) -> None:
    """Money is lost only where an honest engine passes today what the seller failed."""

    async def honest(request: Mapping[str, Any]) -> EngineAnswer:
        return EngineAnswer(ANSWER)

    async def other(request: Mapping[str, Any]) -> EngineAnswer:
        return EngineAnswer("".join(ELSE))

    for engine, action in ((other, "suspend"), (honest, "forfeit")):
        ((_, decision),) = await confirm_failures(probe_store, cheat, "mill-1b", engine)
        assert decision.action == action


async def test_log_probabilities_come_through_where_they_are_asked_for(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"tells": True}) as market:
        (seller,) = market.sellers
        plain = await market.ask(seller)
        assert all(choice["logprobs"] is None for event in plain.events for choice in event["choices"])
        streamed = await market.ask(seller, logprobs=True, top_logprobs=1)
        choices = [choice for event in streamed.events for choice in event["choices"]]
        tokens = [each for choice in choices if choice["logprobs"] for each in choice["logprobs"]["content"]]
        assert "".join(each["token"] for each in tokens) == ANSWER
        assert {name for each in tokens for name in each} == {"token", "logprob", "bytes", "top_logprobs"}
        whole = json.loads((await market.ask(seller, stream=False, logprobs=True)).body)["choices"][0]
        assert [each["logprob"] for each in whole["logprobs"]["content"]] == [-0.25] * len(tokens)
        path = "/v1/completions"
        text = json.loads((await market.ask(seller, stream=False, path=path, prompt="hi", logprobs=0)).body)
        assert "".join(text["choices"][0]["logprobs"]["tokens"]) == ANSWER
        # As many as there can be tokens, and no more.
        seller.manners.texts = ["x"] * 64
        assert (await market.ask(seller, max_tokens=4, logprobs=True)).error


async def test_what_an_auditor_signs_counts_and_what_a_seller_says_of_itself_does_not(tmp_path: Path) -> None:
    auditor = OwnIdentity.open(tmp_path / "auditor")
    now_ms = time.time_ns() // 10**6
    async with stalls(tmp_path, {}, {}, trusted_auditors=(auditor.id,)) as market:
        good, bad = market.sellers
        claimed = (Evidence("redundancy", auditor.id, now_ms, "d" * 64),)
        learn(market.app, [each.listed(evidence=claimed) for each in market.sellers])
        assert [row.tier for row in (await offers_of(market)).offers] == ["declared", "declared"]
        probe_store = ProbeStore(tmp_path / "audits.db")
        for seller, has_failed in ((good, False), (bad, True)):
            offering = AuditTarget(seller.id, seller.id, seller.id, "mill-1b", "a" * 64, "bf16", is_probation=True)
            case = new_case(is_probation=True)
            for number in range(PASSED_MIN):
                failings = ("another answer",) if has_failed else ()
                audit = Audit("canary" if has_failed else "redundancy", f"c{number}", now_ms, "e" * 64, failings)
                case = after_audit(after_request(case), audit)
                probe_store.put(offering, case, audit)
        published: list[Record] = []

        async def publish(records: Sequence[Record]) -> None:
            published.extend(records)

        telling = FindingsPublisher(auditor, probe_store, publish, lambda: now_ms)
        await telling.tell()
        count = len(published)
        await telling.tell()
        assert len(published) == count, "what has not changed is not said again"
        learn(market.app, published)
        market.app.shop._findings = None, {}
        rows = {row.seller: row for row in (await offers_of(market)).offers}
        assert (rows[good.id].tier, rows[good.id].is_probation) == ("redundancy", False)
        assert rows[bad.id].suspended_why == f"failed audits of {auditor.id[:12]}"
        assert (await market.ask(good)).status == 200
        # Only auditors that the owner has named are believed.
        market.app.shop.trusted = frozenset()
        assert {row.tier for row in (await offers_of(market)).offers} == {"declared"}


async def test_audits_end_with_their_budget(tmp_path: Path) -> None:
    fill(tmp_path / "market")
    async with stalls(tmp_path, {"texts": ELSE}, bounds=BOUNDS, audit_nano_per_day=1) as market:
        for _ in range(12):
            await market.ask(market.sellers[0])
        await audits_of(market).settled()
        assert market.app.buyer._means.store.audits_nano(0) == 0
        assert len(market.sellers[0].requests) == 12


async def test_what_audits_cost_is_booked_once(tmp_path: Path) -> None:
    """Through the gateway: what sellers are owed is what callers were charged, and what audits came to."""
    async with fair(tmp_path, {}, audit_pause_s=0.001) as market:
        await market.on_offer(1)
        fill(tmp_path / "gateway" / "market")
        lane, ledger = market.running.services.lanes["market"], market.running.services.ledger
        assert isinstance(lane, MarketLane)
        booked: list[Posting] = []

        refused: list[str] = []

        async def book(posting: Posting) -> Posted:
            # The first one is refused, as often as it comes, until there was another.
            assert posting.idem_key.startswith(f"audit:{AUDIT_ID}")
            if not booked and posting.idem_key in (refused[:1] or [posting.idem_key]):
                refused.append(posting.idem_key)
                raise IdempotencyConflict(posting.idem_key)
            booked.append(posting)
            return await ledger.book(posting)

        bookkeeper = market.running.services.bookkeeper
        booking = OwedReconciler(lane.ask_buyer, book, ledger.look, lambda: bookkeeper.is_behind)
        for _ in range(REQUESTS_MAX):
            assert (await market.ask()).status == 200
            await booking.book_all()
            if booked:
                break
        while await booking.book_all():
            pass
        assert refused[0] in [posting.idem_key for posting in booked]
        for posting in booked:
            assert (await ledger.book(posting)).replayed
        charged_nano = sum(row.charge_nano for row in market.rows())
        with market.running.services.request_log._read() as session:
            audits_nano = balance(session, "expense:audit").posted_nano
        assert audits_nano > 0
        assert market.accrued_nano() == charged_nano + audits_nano
        assert [finding.rule for finding in await ledger.inspection.inspect()] == []
