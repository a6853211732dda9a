"""Keepers over real HTTP and databases: they agree, outlive restarts, and strangers harm none of them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from market.network.gossip import Gossip
from market.network.gossip_routes import RECORDS_PER_MINUTE, router
from market.network.gossip_wire import BODY_BYTES_MAX
from market.network.outbound import Outbound, Unreachable
from market.network.record_keeper import KeeperPolicy, RecordKeeper
from market.network.room import OWN, RecordBounds, Sources
from market.protocol.records.exchange import BUCKETS, summary
from runtime.database import open_engine
from tests.market.network.internet import Site, served
from tests.market.network.test_known import ANN, BOB, FOUNDED, drop, offer, turn
from tests.market.parties import NOW_MS, key_of

pytestmark = pytest.mark.anyio

STEP_S = 60.0


def now_ms() -> int:
    return NOW_MS


@asynccontextmanager
async def answering(app: FastAPI) -> AsyncIterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, STEP_S)
        listening.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(STEP_S):
        while not holds():
            await asyncio.sleep(0.02)


async def test_three_gateways_agree_beside_one_that_lies_and_one_that_hangs(
    tmp_path: Path,
) -> None:
    app, keepers = FastAPI(), {name: RecordKeeper(tmp_path / f"{name}.db", now_ms) for name in "abc"}
    for name, keeper in keepers.items():
        app.include_router(router(keeper), prefix=f"/{name}")

    @app.post("/liar/{path:path}")
    async def lie() -> dict[str, object]:
        return {"summary": ["0" * 64] * BUCKETS, "records": ["{}", "\ud800"[:0], "x" * 9000], "taken": 10**9}

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(answering(app))
        silent = await stack.enter_async_context(served(Site()))
        outbound = await stack.enter_async_context(Outbound(True))
        # a and c never talk to each other.
        peers = {"a": "b", "b": "ac", "c": "b"}
        gossips = {
            name: Gossip(
                keeper,
                outbound,
                [*(f"{url}/{each}" for each in peers[name]), f"{url}/liar", f"http://127.0.0.1:{silent}/silent"],
                every_s=0.3,
            )
            for name, keeper in keepers.items()
        }
        for name, gossip in gossips.items():
            keepers[name].add([offer(f"{name}{n}").raw for n in range(20)], OWN)
            task = asyncio.create_task(gossip.run())
            stack.callback(task.cancel)
        await until(lambda: all(len(each.listings(NOW_MS)) == 60 for each in keepers.values()))
        await until(lambda: len({each.summary() for each in keepers.values()}) == 1)
        await gossips["a"].publish([FOUNDED, offer("ann", issuer=ANN), offer("bob")])
        await until(lambda: len(keepers["c"].listings(NOW_MS)) == 62)
        await gossips["c"].publish([drop(BOB, "bob", "bob"), turn(ANN, 1, "ann", "ann2")])
        await until(lambda: all(len(each.listings(NOW_MS)) == 60 for each in keepers.values()))
        assert keepers["a"].standing(BOB, key_of("bob").public_key.hex()) == "revoked"
        assert keepers["a"].standing(ANN, key_of("ann2").public_key.hex()) == "current"
    for keeper in keepers.values():
        keeper.close()
    again = RecordKeeper(tmp_path / "a.db", now_ms)
    assert again.summary() == keepers["c"].summary()
    assert len(again.statements_of(ANN)) == 2
    again.close()


async def test_a_fresh_gateway_learns_more_than_one_answer_holds(tmp_path: Path) -> None:
    full, app = RecordKeeper(tmp_path / "full", now_ms), FastAPI()
    assert full.add([offer(f"seller{n // 20}", f"m{n % 20}").raw for n in range(520)], OWN) == 520
    app.include_router(router(full))
    async with answering(app) as url, Outbound(True) as outbound:
        fresh = RecordKeeper(tmp_path / "fresh", now_ms, KeeperPolicy(Sources(peers=[url])))
        assert await Gossip(fresh, outbound, []).exchange(url) == 520
        assert fresh.summary() == full.summary()
        # Fewer records are taken from an unknown source.
        wary = RecordKeeper(tmp_path / "wary", now_ms)
        assert await Gossip(wary, outbound, []).exchange(url) <= RecordBounds().stranger
    for each in (full, fresh, wary):
        each.close()


async def test_what_strangers_post_is_bounded(tmp_path: Path) -> None:
    keeper = RecordKeeper(tmp_path / "k.db", now_ms, KeeperPolicy(bounds=RecordBounds(stranger=3)))
    app = FastAPI()
    app.include_router(router(keeper))
    async with answering(app) as url, Outbound(True) as outbound:

        async def post(what: str, body: bytes) -> tuple[int, dict[str, object]]:
            reply = await outbound.ask(f"{url}/market/v1/gossip/{what}", body)
            return reply.status, json.loads(reply.body)

        told = [offer(f"x{n}").raw.decode() for n in range(5)]
        assert await post("records", json.dumps({"records": told}).encode()) == (200, {"taken": 3})
        assert await post("records", json.dumps({"records": told[:3]}).encode()) == (200, {"taken": 0})
        for body in (
            b"",
            b"[" * 10_000,
            b'{"summary": []}',
            json.dumps({"summary": ["0" * 63] * BUCKETS}).encode(),
            json.dumps({"records": ["x"] * 501}).encode(),
        ):
            for what in ("digest", "records"):
                status, answer = await post(what, body)
                assert status == 400
                assert "error" in answer
        with suppress(Unreachable):  # It may hang up before all was sent.
            assert (await post("records", b" " * (BODY_BYTES_MAX + 1)))[0] == 400
        flood = json.dumps({"records": ["x"] * 500}).encode()
        statuses = [(await post("records", flood))[0] for _ in range(RECORDS_PER_MINUTE // 500 + 4)]
        assert statuses.count(200) >= RECORDS_PER_MINUTE // 500
        assert statuses[-1] == 429
        status, answer = await post("digest", json.dumps({"summary": summary_of_nothing()}).encode())
        assert status == 200
        assert len(answer["records"]) == 3  # type: ignore[arg-type]
    keeper.close()


def summary_of_nothing() -> tuple[str, ...]:
    from market.protocol.records.book import Book

    return summary(Book())


def test_gateways_of_one_database_see_what_each_was_told(dsn: str) -> None:
    engine = open_engine(dsn)
    one, other = RecordKeeper(engine, now_ms), RecordKeeper(engine, now_ms)
    assert one.add([offer("bob").raw, FOUNDED.raw], "marketplace") == 2
    assert other.add([FOUNDED.raw, b"nonsense", b"{}"], "marketplace") == 1
    other.refresh()
    assert other.summary() == one.summary()
    one.add([drop(BOB, "bob", "bob").raw], "marketplace")
    other.refresh()
    assert other.listings(NOW_MS) == one.listings(NOW_MS) == []
    late = RecordKeeper(engine, lambda: NOW_MS + 10**10)
    assert [each.kind for each in late.differing(summary_of_nothing())] == ["revocation", "founding"]
    engine.dispose()
