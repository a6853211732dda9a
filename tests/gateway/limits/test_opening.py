"""Limits as the gateway opens them: from its settings, and with its database."""

import asyncio

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy.orm import Session

from gateway.limits.factory import open_limits
from gateway.settings import RedisSettings
from runtime.database import open_engine, read_sessions
from runtime.errors import RateLimited
from tests.gateway.limits.callers import caller, quota
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("is_shared", [False, True])
async def test_limits_hold_with_and_without_redis(dsn: str, redis_server: RedisServer, is_shared: bool) -> None:
    settings = RedisSettings(url=SecretStr(redis_server.url) if is_shared else None, timeout_s=5)
    engine = open_engine(dsn)
    who = caller(quota("requests", 1, "day"), quota("spend", 10, "month"))
    for served in (True, False):
        # The second time is after a restart: what is not in the ledger is known to Redis alone.
        async with open_limits(settings, read_sessions(engine), _booked) as limits:
            if served or not is_shared:
                ticket = await limits.enter(who, "m", 0)
                await ticket.reserve_spend(10)
                ticket.leave(5, 10)
            with pytest.raises(RateLimited):
                await limits.enter(who, "m", 0)
    engine.dispose()


def test_a_url_that_is_none_is_refused_without_being_repeated() -> None:
    with pytest.raises(ValidationError, match="begins with redis://") as refused:
        RedisSettings(url=SecretStr("http://:secret@redis"))
    assert "secret" not in str(refused.value)


async def test_a_gateway_ends_whatever_its_redis_client_is_doing(redis_server: RedisServer) -> None:
    settings = RedisSettings(url=SecretStr(redis_server.url), timeout_s=5)
    # Each turn of the loop is another moment of the client's connecting; one that loses a cancellation hangs.
    for turns in range(40):
        async with asyncio.timeout(60), open_limits(settings, _no_ledger, _booked):
            for _ in range(turns):
                await asyncio.sleep(0)


async def _booked() -> None:
    return None


def _no_ledger() -> Session:
    raise AssertionError("nobody asked for a limit")
