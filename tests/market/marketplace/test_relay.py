"""A seller that no tunnel reaches fetches its work: streams come through, bounds hold, strangers get nothing."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec
import pytest
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse

from gateway.api.marketplace.relay import Relay
from market.marketplace.relay_queue import Carried, RelayBounds, RelayQueue
from market.marketplace.relay_sessions import SESSIONS_PER_SELLER_MAX
from market.network.outbound import Outbound, OutboundReply, Unreachable
from market.network.relayed_request import AnswerPart
from market.protocol.channels.job import MarketJob, pack_job
from market.protocol.channels.statements import Voucher
from market.protocol.channels.terms import Allocation, ChannelTerms
from market.protocol.records.amounts import Amount
from market.seller.pull import Pull, PullPace
from market.seller.reach import Reaches
from runtime.errors import Overloaded, QueueFull, ServiceError
from tests.market.marketplace.relays import BOUNDS, MARKETPLACE, PATIENCE_S, relaying, served
from tests.market.parties import id_of, key_of, signed_record
from tests.market.trade import DIGEST, PRICES

pytestmark = pytest.mark.anyio

SELLER, BUYER = id_of("seller"), id_of("buyer")
QUICK = PullPace(backoff_first_s=0.01, backoff_max_s=0.05)

Agent: TypeAlias = Callable[[Request], Awaitable[Response]]


def job(
    seller: str = SELLER, marketplace: str = "marketplace", lasts_ms: int = 3_600_000, sealed: bytes = b"sealed"
) -> bytes:
    """As the buyer sends it: a voucher on a channel that the marketplace stands behind."""
    now_ms = time.time_ns() // 10**6
    allocation = signed_record(
        marketplace,
        "allocation",
        Allocation(BUYER, seller, Amount(10**9), "h", 1),
        made_ms=now_ms,
        lasts_ms=lasts_ms,
    )
    terms = ChannelTerms(BUYER, seller, allocation.digest)
    voucher = Voucher(terms.channel, 0, 1, DIGEST, DIGEST, PRICES, Amount(0), Amount(1000))
    return pack_job(MarketJob(signed_record("buyer", "voucher", voucher, "v", 1).raw, [allocation.raw], sealed))


@dataclass
class Place:
    """A marketplace, a seller behind it, and a stranger's HTTP."""

    relay: Relay
    marketplace_url: str
    outbound: Outbound
    agents_url: str
    paths: list[str] = field(default_factory=list)

    def url(self, path: str, seller: str = SELLER) -> str:
        return f"{self.marketplace_url}/market/v1/relay/{seller}{path}"

    def pull(self, name: str = "seller") -> Pull:
        return Pull(
            self.marketplace_url,
            id_of("seller"),
            key_of(name),
            self.outbound,
            self.agents_url,
            lambda: MARKETPLACE,
            Reaches(),
            pace=QUICK,
        )


@asynccontextmanager
async def place(agent: Agent, bounds: RelayBounds = BOUNDS) -> AsyncIterator[Place]:
    behind = FastAPI()
    paths: list[str] = []

    @behind.api_route("/{path:path}", methods=["GET", "POST"], response_model=None)
    async def answer(path: str, request: Request) -> Response:
        paths.append(f"/{path}")
        return await agent(request)

    async with relaying(SELLER, bounds) as marketplace, served(behind) as agents_url, Outbound(True) as outbound:
        yield Place(marketplace.relay, marketplace.url, outbound, agents_url, paths)


@asynccontextmanager
async def pulling(pull: Pull) -> AsyncIterator[None]:
    task = asyncio.create_task(pull.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for reach in pull.reaches.changes():
                if reach.is_open:
                    break
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def here(at: Place) -> None:
    """Once the seller's first question for work is at the marketplace."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(ServiceError):
                at.relay.queue.check_room(SELLER)
                return
            await asyncio.sleep(0.01)


async def echo(request: Request) -> Response:
    body = await request.body()
    return Response(msgspec.json.encode({"path": request.url.path, "bytes": len(body)}))


async def test_a_stream_comes_through_piece_by_piece() -> None:
    released = asyncio.Event()

    async def agent(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"event: nonce\ndata: AAAA\n\n"
            await released.wait()
            for number in range(100):
                yield b"data: %d\n\n" % number
            yield b"x" * 500_000

        assert await request.body() == sent
        return StreamingResponse(events(), media_type="text/event-stream")

    sent = job()
    async with place(agent) as at, pulling(at.pull()):
        await here(at)
        async with at.outbound.stream(at.url("/market/v1/jobs"), sent) as answer:
            assert answer.status == 200
            first = await anext(answer.events)
            assert first == b"event: nonce\ndata: AAAA\n\n"
            released.set()
            rest = b"".join([piece async for piece in answer.events])
        assert rest == b"".join(b"data: %d\n\n" % number for number in range(100)) + b"x" * 500_000
        assert at.relay.queue._payers.total() + at.relay.queue._networks.total() == 0


async def test_refusals_of_the_seller_arrive_as_they_are() -> None:
    async def agent(request: Request) -> Response:
        return Response(b'{"error": {"code": "full"}}', 429, {"retry-after": "7"})

    async with place(agent) as at, pulling(at.pull()):
        await here(at)
        reply = await at.outbound.ask(at.url("/market/v1/jobs"), job())
    assert (reply.status, reply.retry_after_s, reply.body) == (429, 7, b'{"error": {"code": "full"}}')


async def test_the_agent_sees_its_buyer_hang_up() -> None:
    hung_up = asyncio.Event()

    async def agent(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"event: wait\ndata: -\n\n"
                    await asyncio.sleep(0.01)
            finally:
                hung_up.set()

        return StreamingResponse(events(), media_type="text/event-stream")

    async with place(agent) as at, pulling(at.pull()):
        await here(at)
        async with at.outbound.stream(at.url("/market/v1/jobs"), job()) as answer:
            await anext(answer.events)
        async with asyncio.timeout(PATIENCE_S):
            await hung_up.wait()


async def test_only_what_buyers_may_ask_gets_to_the_seller() -> None:
    """Threat 22: neither paths nor headers nor sizes lead to anything else behind the seller's port."""
    strange = [
        "/admin/keys",
        "/v1/chat/completions",
        "/market/v1/gossip/records",
        "/market/v1/jobs/",
        "/market/v1/jobs?x=1",
        "/market/v1/jobs/../../admin/keys",
        "/market/v1/jobs/%2e%2e/%2e%2e/admin/keys",
        "/market/v1/jobs%00",
        "//admin/keys",
        "/market/v1/challenge/" + "0" * 63,
        "/market/v1/challenge/" + "0" * 64 + "%0d%0ax:%20y",
        "/market/v1/challenge/../../../etc/passwd",
    ]
    async with place(echo) as at, pulling(at.pull()):
        await here(at)
        for path in strange:
            for body in (None, b"{}"):
                assert (await at.outbound.ask(at.url(path), body)).status in (400, 404, 405), path
        too_long = await at.outbound.ask(at.url("/market/v1/receipts"), b"x" * 2**20)
        assert too_long.status == 413
        assert at.paths == []
        found = await at.outbound.ask(at.url("/market/v1/challenge/" + "a" * 64))
        assert (found.status, at.paths) == (200, ["/market/v1/challenge/" + "a" * 64])
        sent = await at.outbound.ask(at.url("/market/v1/receipts"), b"abc")
        assert msgspec.json.decode(sent.body)["bytes"] == 3


async def test_what_the_marketplace_does_not_stand_behind_is_not_carried() -> None:
    async with place(echo) as at, pulling(at.pull()):
        await here(at)
        for strange in (job(marketplace="another"), job(seller=id_of("other")), job(lasts_ms=1)):
            reply = await at.outbound.ask(at.url("/market/v1/jobs"), strange)
            assert (reply.status, msgspec.json.decode(reply.body)["error"]["code"]) == (402, "unpaid")
        assert (await at.outbound.ask(at.url("/market/v1/jobs"), b"\x80")).status == 400
        assert at.paths == []


async def test_only_the_seller_gets_its_work() -> None:
    async with place(echo) as at:
        jobs = f"{at.marketplace_url}/market/v1/jobs"
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert (await at.outbound.ask(f"{jobs}/poll", b"", headers=headers)).status == 401
        thief = asyncio.create_task(at.pull("thief").run())
        async with asyncio.timeout(PATIENCE_S):
            async for reach in at.pull("thief").reaches.changes():
                assert not reach.is_open
                break
        # The seller's own proof is good once.
        nonce = msgspec.json.decode(
            (await _say(at, f"{jobs}/nonce", {"identity": SELLER})).body, type=dict[str, str]
        )["nonce"]
        signature = (
            key_of("seller").sign(b"millrace relay\n" + bytes.fromhex(MARKETPLACE) + bytes.fromhex(nonce)).hex()
        )
        proof = {
            "identity": SELLER,
            "key": key_of("seller").public_key.hex(),
            "nonce": nonce,
            "signature": signature,
        }
        assert (await _say(at, f"{jobs}/session", {**proof, "signature": "0" * 128})).status == 401
        # A failed attempt uses nothing up: any third party could make those.
        with pytest.raises(Overloaded):
            at.relay.queue.check_room(SELLER)
        assert (await _say(at, f"{jobs}/session", proof)).status == 200
        # It has said that buyers may come, and will ask in a moment.
        at.relay.queue.check_room(SELLER)
        assert (await _say(at, f"{jobs}/session", proof)).status == 401
        stranger = await _say(at, f"{jobs}/nonce", {"identity": id_of("stranger")})
        assert stranger.status == 404
        thief.cancel()
        await asyncio.wait({thief})


async def _say(at: Place, url: str, fields: dict[str, str]) -> OutboundReply:
    return await at.outbound.ask(url, msgspec.json.encode(fields), headers={"content-type": "application/json"})


async def test_one_buyer_does_not_take_every_place_and_absent_sellers_are_said_to_be() -> None:
    released = asyncio.Event()

    async def agent(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"event: wait\ndata: -\n\n"
            await released.wait()

        return StreamingResponse(events())

    async with place(agent, replace(BOUNDS, per_payer=2, per_seller=3)) as at:
        absent = await at.outbound.ask(at.url("/market/v1/jobs"), job())
        assert (absent.status, msgspec.json.decode(absent.body)["error"]["code"]) == (503, "unreachable")
        async with pulling(at.pull()), AsyncExitStack() as stack:
            await here(at)
            same = job()
            for _ in range(2):
                answer = await stack.enter_async_context(at.outbound.stream(at.url("/market/v1/jobs"), same))
                await anext(answer.events)
            full = await at.outbound.ask(at.url("/market/v1/jobs"), same)
            assert (full.status, msgspec.json.decode(full.body)["error"]["code"]) == (429, "full")
            await stack.enter_async_context(at.outbound.stream(at.url("/market/v1/jobs"), job(lasts_ms=7_200_000)))
            assert (await at.outbound.ask(at.url("/market/v1/challenge/" + "0" * 64))).status == 429
            released.set()


async def test_a_seller_that_goes_away_in_the_middle_ends_the_answer() -> None:
    async def agent(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"event: wait\ndata: -\n\n"
            await asyncio.Event().wait()

        return StreamingResponse(events())

    async with place(agent, replace(BOUNDS, gap_s=0.2, present_s=0.5)) as at:
        async with pulling(at.pull()):
            await here(at)
            stream = at.outbound.stream(at.url("/market/v1/jobs"), job())
            answer = await stream.__aenter__()
            await anext(answer.events)
        with pytest.raises(Unreachable):
            await anext(answer.events)
        await stream.__aexit__(None, None, None)


async def test_a_part_that_was_sent_twice_arrives_once() -> None:
    async with place(echo) as at:
        poll = asyncio.create_task(at.relay.queue.poll(SELLER))
        await here(at)
        carried = at.relay.queue.put(SELLER, "payer", "GET", "/market/v1/challenge/" + "0" * 64, b"")
        fetched = await poll
        assert fetched is not None
        for number, data in ((0, b"a"), (0, b"a"), (1, b"b"), (0, b"a"), (1, b"b")):
            await at.relay.queue.answer(SELLER, fetched.id, AnswerPart(number, data))
        with pytest.raises(ServiceError, match="Part 2 is expected next"):
            await at.relay.queue.answer(SELLER, fetched.id, AnswerPart(3, b"d"))
        await at.relay.queue.answer(SELLER, fetched.id, AnswerPart(2, b"", is_last=True))
        assert [data async for data in carried.rest(await carried.first())] == [b"a", b"b"]
        at.relay.queue.drop(carried)
        with pytest.raises(ServiceError, match="no longer waiting"):
            await at.relay.queue.answer(SELLER, fetched.id, AnswerPart(3))


class _Line(Outbound):
    """Questions for work get lost on it, or are answered at once: `lost` of them, and `idle` from then."""

    lost = 0
    idle = False

    def __init__(self) -> None:
        super().__init__(True)
        self.paths: list[str] = []

    async def ask(self, url: str, body: bytes | None = None, **given: Any) -> OutboundReply:
        self.paths.append(url.rpartition("/")[2])
        if url.endswith("/poll"):
            if self.lost:
                self.lost -= 1
                raise Unreachable("lost")
            if self.idle:
                return OutboundReply(204, b"")
        return await super().ask(url, body, **given)


async def test_a_poor_line_neither_unlists_nor_costs_sessions() -> None:
    line = _Line()
    async with place(echo) as at, line:
        line.lost = QUICK.failures_max - 1
        pull = Pull(
            at.marketplace_url,
            SELLER,
            key_of("seller"),
            line,
            at.agents_url,
            lambda: MARKETPLACE,
            Reaches(),
            pace=QUICK,
        )
        seen: list[bool] = []

        async def look() -> None:
            async for reach in pull.reaches.changes():
                seen.append(reach.is_open)  # noqa: PERF401 - it is looked at before the end

        looking = asyncio.create_task(look())
        async with pulling(pull):
            await here(at)  # by the question that came through after the others were lost
            assert (await at.outbound.ask(at.url("/market/v1/receipts"), b"abc")).status == 200
            looking.cancel()
        assert line.paths.count("nonce") == 1
        assert False not in seen[seen.index(True) :]


async def test_a_marketplace_that_answers_at_once_is_not_asked_all_the_time() -> None:
    line = _Line()
    async with place(echo) as at, line:
        line.idle = True
        pace = replace(QUICK, poll_s_min=3600.0)
        async with pulling(
            Pull(
                at.marketplace_url,
                SELLER,
                key_of("seller"),
                line,
                at.agents_url,
                lambda: MARKETPLACE,
                Reaches(),
                pace=pace,
            )
        ):
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert line.paths.count("poll") == 1


async def test_an_answer_goes_on_with_another_session() -> None:
    """A seller that opens too many sessions ends its oldest one."""
    released = asyncio.Event()

    async def agent(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"one"
            await released.wait()
            yield b"two"

        return StreamingResponse(events())

    async with place(agent) as at, pulling(at.pull()):
        await here(at)
        async with at.outbound.stream(at.url("/market/v1/jobs"), job()) as answer:
            assert await anext(answer.events) == b"one"
            for _ in range(SESSIONS_PER_SELLER_MAX):
                nonce = at.relay.sessions.nonce(SELLER)
                signed_record = b"millrace relay\n" + bytes.fromhex(MARKETPLACE) + bytes.fromhex(nonce)
                key = key_of("seller")
                at.relay.sessions.open(SELLER, key.public_key.hex(), nonce, key.sign(signed_record).hex())
            released.set()
            assert b"".join([piece async for piece in answer.events]) == b"two"


async def test_only_the_marketplace_that_is_known_gets_a_signature() -> None:
    """Threat 21: what is signed for one marketplace opens nothing at another one."""
    known: dict[str, str] = {}
    for _ in range(2):
        line = _Line()
        async with place(echo) as at, line:
            pull = Pull(
                at.marketplace_url,
                SELLER,
                key_of("seller"),
                line,
                at.agents_url,
                lambda: known.get("marketplace"),
                Reaches(),
                pace=QUICK,
            )
            trying = asyncio.create_task(pull.run())
            async with asyncio.timeout(PATIENCE_S):
                async for reach in pull.reaches.changes():
                    if "marketplace" in reach.why and "asked" not in reach.why:
                        break
            trying.cancel()
            await asyncio.wait({trying})
            assert "session" not in line.paths
        known["marketplace"] = id_of("another")


async def test_strangers_take_nothing_from_those_who_pay() -> None:
    """Threat 26: what no credits stand behind has few places, all of its own, and not for long."""
    queue = RelayQueue(
        replace(BOUNDS, unbacked=3, unbacked_per_seller=2, unbacked_per_network=2, requests=2, per_payer=1)
    )
    sellers = [id_of(name) for name in ("seller", "other")]
    polls = [asyncio.create_task(queue.poll(seller)) for seller in sellers for _ in range(8)]
    await asyncio.sleep(0)

    def stranger(seller: str, network: str) -> Carried:
        return queue.put(seller, network, "GET", "/market/v1/challenge/" + "a" * 64, b"", is_backed=False)

    taken = [stranger(sellers[0], "one"), stranger(sellers[0], "two"), stranger(sellers[1], "one")]
    assert taken[0].lasts_s < BOUNDS.job_s
    for seller, network in ((sellers[0], "three"), (sellers[1], "one"), (sellers[1], "three")):
        with pytest.raises(QueueFull):
            stranger(seller, network)
    for payer in ("a", "b"):
        queue.put(sellers[0], payer, "POST", "/market/v1/jobs", b"x")
    for each in taken:
        queue.drop(each)
    stranger(sellers[1], "one")
    for poll in polls:
        poll.cancel()
    await asyncio.wait(polls)


async def test_one_account_with_many_channels_leaves_room_for_others() -> None:
    queue = RelayQueue(replace(BOUNDS, requests=10, per_payer=2, per_account=3))
    sellers = [id_of(name) for name in ("seller", "other")]
    polls = [asyncio.create_task(queue.poll(seller)) for seller in sellers]
    await asyncio.sleep(0)

    def job(number: int, buyer: str, seller: str) -> Carried:
        accounts = (f"buyer:{buyer}", f"seller:{seller}")
        return queue.put(sellers[number % 2], f"channel {number}", "POST", "/", b"x", accounts=accounts)

    taken = [job(number, "ann", f"seller {number}") for number in range(3)]
    with pytest.raises(QueueFull):
        job(3, "ann", "sam")
    job(3, "bob", "sam")
    queue.drop(taken[0])
    job(4, "ann", "sam")
    for poll in polls:
        poll.cancel()
    await asyncio.wait(polls)


async def test_bytes_count_from_the_first_that_came_until_the_seller_has_them() -> None:
    queue = RelayQueue(replace(BOUNDS, waiting_bytes=100, reading_bytes_per_network=60))
    poll = asyncio.create_task(queue.poll(SELLER))
    await asyncio.sleep(0)
    with queue.reading("one") as came:
        came(60)
        with pytest.raises(QueueFull):
            came(1)
    with queue.reading("one") as came, queue.reading("two") as others:
        came(60)
        with pytest.raises(QueueFull):
            others(41)
    carried = queue.put(SELLER, "payer", "POST", "/market/v1/jobs", b"x" * 100)
    fetched = await poll
    assert fetched
    assert len(fetched.body) == 100
    assert carried.relayed.body == b""
    with queue.reading("one") as came, pytest.raises(QueueFull):
        came(1)
    await queue.answer(SELLER, fetched.id, AnswerPart(0, b"a"))
    with queue.reading("one") as came:
        came(60)
    queue.drop(carried)
