"""A key revoked at one gateway is refused at the others through etcd, without asking the database."""

import asyncio
import json
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from sqlalchemy import Engine

from gateway.identity.etcd_members import EtcdMembers, EtcdUnavailable
from gateway.identity.keys import Keys
from gateway.identity.shared_revocations import SharedRevocations, share_revocations
from gateway.settings import CoordinationSettings, read_settings
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.settings import SettingsInvalid
from tests.gateway.identity.etcd_server import ETCD, Etcd

pytestmark = pytest.mark.anyio
needs_etcd = pytest.mark.skipif(ETCD is None, reason="needs etcd: apt-get install etcd-server")

STEP_S = 60.0
NO_MEMBER = "http://127.0.0.1:9"


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


def keys_of(engine: Engine) -> Keys:
    """Keys that stay in memory until a revocation arrives."""
    return Keys(b"secret", read_sessions(engine), write_sessions(engine), clock=lambda: 0.0)


@asynccontextmanager
async def gateways(engine: Engine, urls: list[str]) -> AsyncIterator[list[tuple[Keys, SharedRevocations]]]:
    """Two. The second asks another member first."""
    async with AsyncExitStack() as stack:
        found = []
        for order in (urls, urls[::-1]):
            keys = keys_of(engine)
            settings = CoordinationSettings(etcd_urls=tuple(order), timeout_s=1.0)
            found.append((keys, await stack.enter_async_context(share_revocations(settings, keys))))
        yield found


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(STEP_S):
        while not holds():
            await asyncio.sleep(0.02)


async def until_it_answers(shared: SharedRevocations) -> None:
    async with asyncio.timeout(STEP_S):
        while True:
            try:
                await shared.load()
            except EtcdUnavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def revoke_and_see(one: Keys, other: Keys) -> None:
    """A key that both have in memory."""
    issued = one.issue("phone", ("pool",))
    assert other.find(issued.token)
    assert other.cached(issued.token)
    await asyncio.to_thread(one.revoke, issued.row.key_id)
    await until(lambda: other.cached(issued.token) is None)
    assert issued.row.key_id in other.refused


@needs_etcd
async def test_a_key_revoked_at_one_gateway_is_refused_at_the_other(engine: Engine, tmp_path: Path) -> None:
    with Etcd(tmp_path, 1) as etcd:
        async with gateways(engine, etcd.urls) as ((one, _), (other, shared)):
            await until_it_answers(shared)
            await revoke_and_see(one, other)
            # A gateway that starts later knows it before it admits any caller, whatever its database says.
            valid = one.issue("tablet", ("pool",))
            await shared.add(valid.row.key_id)
            late = keys_of(engine)
            async with share_revocations(CoordinationSettings(etcd_urls=tuple(etcd.urls)), late):
                assert late.find(valid.token) is None


async def test_without_a_member_that_answers_the_database_decides(engine: Engine) -> None:
    async with gateways(engine, [NO_MEMBER, NO_MEMBER]) as ((keys, shared), _):
        issued = keys.issue("phone", ("pool",))
        assert keys.find(issued.token)
        await asyncio.to_thread(keys.revoke, issued.row.key_id)
        assert keys.cached(issued.token) is None
        assert keys.find(issued.token) is None
        with pytest.raises(EtcdUnavailable):
            await shared.add(issued.row.key_id)


@asynccontextmanager
async def member_saying(ranges: list[dict[str, Any]], watches: list[dict[str, Any]]) -> AsyncIterator[str]:
    """A member of etcd with these answers; the last one of each is repeated."""

    async def answer(request: web.Request) -> web.Response:
        left = ranges if request.path.endswith("/range") else watches
        return web.Response(text=json.dumps(left.pop(0) if len(left) > 1 else left[0]) + "\n")

    app = web.Application()
    app.router.add_post("/v3/{what:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def range_of(*key_ids: str) -> dict[str, Any]:
    names = [b64encode(f"millrace/revoked/{key_id}".encode()).decode() for key_id in key_ids]
    return {"header": {"revision": "1"}, "kvs": [{"key": name} for name in names]}


@pytest.mark.parametrize("odd", [{}, {"header": {"revision": "x"}}, {"kvs": 5}])
async def test_an_odd_answer_of_etcd_is_told_and_the_next_one_is_read(engine: Engine, odd: dict[str, Any]) -> None:
    ranges: list[dict[str, Any]] = [odd, range_of("first"), odd, range_of("first", "second")]
    watches: list[dict[str, Any]] = [{"result": {"events": [{}]}}, {"result": {}}]
    async with member_saying(ranges, watches) as url:
        settings, keys = CoordinationSettings(etcd_urls=(url,)), keys_of(engine)
        with structlog.testing.capture_logs() as told:
            async with share_revocations(settings, keys) as shared:
                await until(lambda: "second" in shared)
        assert told[0]["event"] == "etcd does not answer yet"
        reasons = [entry["reason"] for entry in told if entry["event"] == "revocations not received"]
        assert len(reasons) == 2
        assert all("malformed" in reason for reason in reasons)


@needs_etcd
@pytest.mark.slow
async def test_any_one_of_three_members_may_be_lost(engine: Engine, tmp_path: Path) -> None:
    with Etcd(tmp_path, 3) as etcd:
        async with gateways(engine, etcd.urls) as ((one, _), (other, shared)):
            for member in etcd.members:
                await until_it_answers(shared)
                member.kill()
                await revoke_and_see(one, other)
                member.start()


@needs_etcd
@pytest.mark.slow
async def test_a_member_cut_off_from_the_others_says_nothing(engine: Engine, tmp_path: Path) -> None:
    """What was revoked meanwhile is known everywhere once they answer again."""
    with Etcd(tmp_path, 3) as etcd:
        async with gateways(engine, etcd.urls) as ((one, _), (other, shared)):
            await until_it_answers(shared)
            for member in etcd.members[1:]:
                member.signal(signal.SIGSTOP)
            alone = EtcdMembers([etcd.urls[0]], timeout_s=2.0)
            with pytest.raises(EtcdUnavailable):
                await SharedRevocations(alone, "millrace", lambda: None).load()
            await alone.aclose()
            issued = one.issue("phone", ("pool",))
            assert other.find(issued.token)
            await asyncio.to_thread(one.revoke, issued.row.key_id)
            assert other.cached(issued.token)
            for member in etcd.members[1:]:
                member.signal(signal.SIGCONT)
            await until(lambda: other.cached(issued.token) is None)


@pytest.mark.parametrize(
    "given",
    [{"etcd_urls": ["10.0.0.1:2379"]}, {"etcd_urls": ["http://user:word@10.0.0.1:2379"]}, {"prefix": "a/b"}],
)
async def test_settings_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(SettingsInvalid, match="coordination"):
        read_settings(coordination=given)
