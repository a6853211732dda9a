"""Gateways that share a database see each other, and refuse at once what one of them has revoked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import Engine

from gateway.coordination.coordinator import Deposed
from gateway.coordination.factory import Coordination, open_coordination
from gateway.coordination.fence import fence
from gateway.identity.keys import Keys
from gateway.settings import CoordinationSettings, read_settings
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.settings import SettingsInvalid

pytestmark = pytest.mark.anyio

STEP_S = 60.0


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
async def gateways(engine: Engine) -> AsyncIterator[list[tuple[Keys, Coordination]]]:
    """Two, whose keys stay cached for ever where nobody says anything."""
    read, write = read_sessions(engine), write_sessions(engine)
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(2):
            keys = Keys(b"secret", read, write, clock=lambda: 0.0)
            opened = open_coordination(CoordinationSettings(), keys, read, write, poll_s=0.05)
            found.append((keys, await stack.enter_async_context(opened)))
        yield found


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(STEP_S):
        while not holds():
            await asyncio.sleep(0.02)


async def test_a_key_revoked_at_one_gateway_is_refused_at_the_other(
    gateways: list[tuple[Keys, Coordination]], engine: Engine
) -> None:
    (one, _), (other, there) = gateways
    await until(lambda: len(there.membership.members) == 2)
    issued = one.issue("phone", ("pool",))
    assert other.find(issued.token)
    assert other.cached(issued.token)
    await asyncio.to_thread(one.revoke, issued.row.key_id)
    await until(lambda: other.cached(issued.token) is None)
    assert issued.row.key_id in other.refused
    # A gateway that starts later knows it before it admits any caller, whatever its database says.
    valid = one.issue("tablet", ("pool",))
    await there.coordinator.put(f"rights/revoked/{valid.row.key_id}", b"")
    late = Keys(b"secret", read_sessions(engine), write_sessions(engine))
    sessions = read_sessions(engine), write_sessions(engine)
    async with open_coordination(CoordinationSettings(), late, *sessions, poll_s=0.05) as again:
        assert late.find(valid.token) is None
        await until(lambda: len(again.membership.members) == 3)
    await until(lambda: len(there.membership.members) == 2)


async def test_a_chore_is_led_by_one_gateway_and_handed_over(
    gateways: list[tuple[Keys, Coordination]], engine: Engine
) -> None:
    claims = [coordination.lead("maturity") for _, coordination in gateways]
    tasks = [asyncio.create_task(claim.run()) for claim in claims]
    await until(lambda: any(claim.lease for claim in claims))
    first = next(n for n, claim in enumerate(claims) if claim.lease)
    lease = claims[first].lease
    assert lease
    assert claims[1 - first].lease is None
    tasks[first].cancel()
    await asyncio.gather(tasks[first], return_exceptions=True)
    assert claims[first].lease is None
    await until(lambda: claims[1 - first].lease is not None)
    successor = claims[1 - first].lease
    assert successor
    assert successor.epoch > lease.epoch
    with pytest.raises(Deposed), write_sessions(engine)() as session, session.begin():
        fence(session.connection(), lease)
    tasks[1 - first].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "etcd"},
        {"kind": "etcd", "etcd_urls": ["10.0.0.1:2379"]},
        {"etcd_urls": ["http://user:word@10.0.0.1:2379"]},
        {"prefix": "a/b"},
    ],
)
async def test_settings_that_make_no_sense_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(SettingsInvalid, match="coordination"):
        read_settings(coordination=given)
