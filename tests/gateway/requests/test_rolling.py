"""A hold grows with its stream; where no more can be put aside, the answer ends there and says why."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accounting.money import Price
from accounting.rules.held import Hold
from gateway.billing.ledger_service import LedgerService
from gateway.lanes.base import Answer, Call, Lane, Offer
from gateway.quota import Quota
from gateway.requests import incremental_hold
from gateway.settings import LaneName
from tests.gateway.http.edges import Writer, backend, served, until, whole, with_lanes
from tests.gateway.requests.roads import PaidLane, nothing_is_left, road, send
from tests.gateway.requests.talkers import CREDITS, PRICE, TIME_S, WORD, Talker, ending, paid, spent, stream

pytestmark = pytest.mark.anyio


async def test_it_begins_with_little_and_grows_to_its_end(tmp_path: Path) -> None:
    talker = Talker(3000, waits_at=100)
    async with paid(tmp_path, talker, CREDITS) as (running, _):
        connection = await send(running, model="paid", stream=True)
        await until(lambda: running.services.health.of("cloud:acme").speaking > 0, TIME_S)
        assert (await running.services.ledger.balance("owner")).held_nano == 512
        talker.goes_on.set()
        streamed = await ending(connection)
        assert (streamed.words, streamed.finishes, streamed.trailers) == (3000, {0: "stop"}, b"\r\n")
        assert await spent(running) == 3000
        assert running.services.metrics.hold_extensions.labels("granted").value == 3


@pytest.mark.parametrize("credit", [700, 20])
async def test_credits_run_out(tmp_path: Path, credit: int) -> None:
    talker = Talker(2000, waits_at=750)
    async with paid(tmp_path, talker, credit) as (running, _):
        streamed = await stream(running, stream_options={"include_usage": True})
        assert (streamed.ended, streamed.finishes) == ("credits_exhausted", {0: "length"})
        # What is less than a useful step stays theirs.
        assert credit - 16 < streamed.words <= credit
        assert streamed.chunks[-1]["usage"]["completion_tokens"] == streamed.words
        assert {each["id"] for each in streamed.chunks} == {"chatcmpl-1"}
        talker.goes_on.set()
        await until(lambda: talker.was_stopped, TIME_S)
        assert await spent(running, credit) == streamed.words


async def test_who_has_less_than_is_useful_is_refused(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(5), 15) as (running, provider):
        refused = await stream(running)
        assert (refused.answered.status, provider.requests) == (402, [])
        whole = await running.ask(model="paid")
        assert whole.status == 402


async def test_a_budget_runs_out(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(2000), CREDITS) as (running, _):
        caller = running.services.keys.find(running.key)
        assert caller
        running.services.directory.quotas.set(Quota(f"key:{caller.key_id}", "spend", 600, "day"))
        caller = running.services.keys.find(running.key)
        assert caller
        streamed = await stream(running)
        assert (streamed.ended, streamed.finishes) == ("budget_exceeded", {0: "length"})
        assert 512 < streamed.words <= 600
        assert await spent(running) == streamed.words
        (counter,) = running.services.limits.plans.of(caller, "paid").spend
        assert (counter.taken, counter.held) == (streamed.words, 0)


async def test_max_tokens_that_are_too_dear_are_streamed_in_part(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(3000), 900) as (running, provider):
        streamed = await stream(running, max_tokens=3000)
        assert streamed.ended == "credits_exhausted"
        assert 884 < streamed.words <= 900
        assert json.loads(provider.requests[-1])["max_tokens"] == 3000
        assert (await running.ask(model="paid", max_tokens=3000)).status == 402


async def test_several_choices_share_what_is_paid_for(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(1000, choices=2), 1501) as (running, _):
        streamed = await stream(running, n=2)
        assert (streamed.ended, streamed.finishes) == ("credits_exhausted", {0: "length", 1: "length"})
        assert 1501 - 2 * 16 < streamed.words <= 1500
        assert await spent(running, 1501) == streamed.words


async def test_two_streams_of_one_payer_share_the_last_credits(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(3000), 2000) as (running, _):
        both = await asyncio.gather(stream(running), stream(running))
        assert [streamed.ended for streamed in both] == ["credits_exhausted"] * 2
        said = sum(streamed.words for streamed in both)
        assert 2000 - 2 * 16 < said <= 2000
        assert await spent(running, 2000) == said


async def test_a_ledger_that_is_away_ends_it_at_the_border_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> Hold:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(LedgerService, "grow", never)
    monkeypatch.setattr(incremental_hold, "BORDER_S", 0.2)
    async with paid(tmp_path, Talker(600), CREDITS) as (running, _):
        streamed = await stream(running)
        assert (streamed.ended, streamed.words) == ("ledger_unavailable", 512)
        assert await spent(running) == 512
    async with paid(tmp_path / "short", Talker(500), CREDITS) as (running, _):
        assert (await stream(running)).finishes == {0: "stop"}


async def test_who_hangs_up_at_the_border_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def never(*_: Any) -> Hold:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(LedgerService, "grow", never)
    async with paid(tmp_path, Talker(2000), CREDITS) as (running, _):
        _, writer = await send(running, model="paid", stream=True)
        await asked.wait()
        writer.close()
        await nothing_is_left(running, TIME_S)
        assert 0 < await spent(running) <= 512


@pytest.mark.parametrize(
    ("path", "end"),
    [
        (b"/v1/messages", b'"stop_reason":"max_tokens"'),
        (b"/v1/responses", b'"incomplete_details":{"reason":"max_output_tokens"}'),
        (b"/api/chat", b'"done_reason":"length"'),
    ],
)
async def test_every_api_says_it_in_its_own_words(tmp_path: Path, path: bytes, end: bytes) -> None:
    body: dict[str, Any] = {"model": "paid", "stream": True}
    messages = [{"role": "user", "content": "Hi"}]
    body |= {"input": "Hi"} if path.endswith(b"responses") else {"messages": messages, "max_tokens": 3000}
    async with paid(tmp_path, Talker(2000), 700) as (running, _):
        reader, writer = await running.connect()
        writer.write(running.request(json.dumps(body).encode(), b"connection: close\r\n", path))
        raw = await asyncio.wait_for(reader.read(), TIME_S)
        writer.close()
        assert end in raw
        assert raw.endswith(b"\r\n0\r\nx-millrace-ended: credits_exhausted\r\n\r\n")
        assert raw.count(WORD.encode()) > 684


class _TwoProviders(PaidLane):
    """A cheap one that has nothing to say, and one at twice its price."""

    def __init__(self, cheap_url: str, dear_url: str) -> None:
        super().__init__(cheap_url, "paid", PRICE)
        self._dear = PaidLane(dear_url, "paid", replace(PRICE, price=Price(0, 0, 2 * 10**6)))

    def offers(self, model: str) -> list[Offer]:
        return [*super().offers(model), *(replace(offer, backend="dear") for offer in self._dear.offers(model))]

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        if offer.backend == "dear":
            return await self._dear.open(call, offer)
        return await super().open(call, offer)


async def test_a_dearer_provider_takes_over_on_the_same_hold(tmp_path: Path) -> None:
    async def fails(body: bytes, writer: Writer) -> None:
        writer.write(whole(b"{}", b"500 No"))

    async with backend(fails) as cheap, backend(Talker(1000)) as dear, road(tmp_path) as own:
        services, lane = own.services, _TwoProviders(cheap.base_url, dear.base_url)
        await services.ledger.credit("c1", "owner", CREDITS, "test")
        lanes: dict[LaneName, Lane] = {**services.lanes, "cloud": lane}
        async with served(with_lanes(services, lanes)) as running:
            streamed = await stream(running)
            assert "took over from cloud:acme" in streamed.answered.headers["x-millrace-reason"]
            assert (streamed.words, len(cheap.requests)) == (1000, 1)
            assert await spent(running) == 2000
        await lane.client.close()
        await lane._dear.client.close()


async def test_completions_of_several_prompts_end_one_by_one(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(1000, choices=4), 600) as (running, _):
        body = {"model": "paid", "stream": True, "prompt": ["One", "Two"], "n": 2, "max_tokens": 1000}
        reader, writer = await running.connect()
        writer.write(running.request(json.dumps(body).encode(), b"connection: close\r\n", b"/v1/completions"))
        streamed = await ending((reader, writer))
        assert (streamed.ended, streamed.finishes) == ("credits_exhausted", dict.fromkeys(range(4), "length"))
        assert 600 - 4 * 16 < streamed.answered.content.count(WORD.encode()) <= 600
