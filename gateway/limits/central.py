"""Limits in Redis: one call reports and draws for many counters. Imported only if Redis is configured."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.limits.central_script import REPLY_FIELDS, REPLY_HEAD, SCRIPT
from gateway.limits.counters import CounterKey
from gateway.limits.leased import LeasedCounter, begins
from gateway.limits.orders import Grant, Order

# A missed message costs at most a second, because unused slices are returned anyway.
_LISTEN_S = 5.0


class CentralUnavailable(Exception):
    """Redis did not answer, or not in time."""


class CounterStanding(NamedTuple):
    """The state that a process reports about itself with every exchange.

    `generation` is the last seen generation of counters, empty before the first. `has_told_again`: since it
    learned of the loss of the previous generation, it has reported all its running requests again. `told_ms` is
    the time on Redis's clock before which it has reported everything.
    """

    generation: str = ""
    processes: int = 1
    has_told_again: bool = False
    told_ms: int = 0


class Round(NamedTuple):
    """The answer to an exchange. It has no grants if the counters have another generation than the process."""

    processes: int
    generation: str
    is_open: bool
    at_ms: int
    grants: list[Grant]


class Central:
    """One process's connection to the shared counters. Every call takes `timeout_s` seconds at most."""

    def __init__(self, url: str, prefix: str, timeout_s: float, lease_s: float) -> None:
        self.process = secrets.token_hex(8)
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._lease_ms = int(1000 * lease_s)
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # Do not retry: a process without an answer carries on, and tries again a tenth of a second later.
            retry=Retry(NoBackoff(), 0),
            max_connections=4,
            protocol=2,
        )
        self._script = self._redis.register_script(SCRIPT)

    def name(self, key: CounterKey) -> str:
        """Return the counter's name in Redis; the braces keep all counters on one shard."""
        return f"{{{self._prefix}}}:limit:{key.measure}:{key.span or 'now'}:{key.scope}:{key.model or ''}"

    async def exchange(
        self, orders: Sequence[tuple[LeasedCounter, Order]], wall_s: float, standing: CounterStanding
    ) -> Round:
        """Send orders; returns a grant for each, in the same order. Raises CentralUnavailable."""
        names = [f"{{{self._prefix}}}:{shared}" for shared in ("processes", "generation", "told")]
        names += [counter.name for counter, _ in orders]
        arguments: list[str | int] = [self.process, self._lease_ms, *standing[:2]]
        arguments += [int(standing.has_told_again), standing.told_ms]
        for counter, order in orders:
            arguments += _arguments(counter, order, wall_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                head, fields = _parsed(await self._script(names, arguments))
        except (RedisError, OSError, TimeoutError) as error:
            raise CentralUnavailable(type(error).__name__) from error
        starts = range(0, len(fields), REPLY_FIELDS)
        grants = [_grant(fields[start : start + REPLY_FIELDS]) for start in starts]
        return Round(int(head[0]), head[1].decode(), head[2] == b"1", int(head[3]), grants)

    async def recall(self, names: Sequence[str]) -> None:
        """Ask other processes to return unused amounts of these counters. Raises CentralUnavailable."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._redis.publish(self._channel, msgspec.json.encode([self.process, *names]))
        except (RedisError, OSError, TimeoutError) as error:
            raise CentralUnavailable(type(error).__name__) from error

    async def recalled(self) -> AsyncGenerator[list[str]]:
        """Yield names of counters whose unused amounts another process needs. Raises CentralUnavailable."""
        listener = self._redis.pubsub(ignore_subscribe_messages=True)
        try:
            async with aclosing(listener):
                await _to_its_end(listener.subscribe(self._channel))
                while True:
                    message = await listener.get_message(timeout=_LISTEN_S)
                    if message is None:
                        await listener.ping()
                        continue
                    if message["type"] != "message":
                        continue
                    sender, *names = msgspec.json.decode(message["data"], type=list[str])
                    if sender != self.process:
                        yield names
        except (RedisError, OSError, TimeoutError, msgspec.MsgspecError) as error:
            raise CentralUnavailable(type(error).__name__) from error

    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect(inuse_connections=True)

    @property
    def _channel(self) -> str:
        return f"{{{self._prefix}}}:recall"


async def _to_its_end(connecting: Awaitable[None]) -> None:
    """Delay cancellation until the call is done: redis 8.1 loses a cancellation, or a socket, in between.

    The client's own timeouts bound the wait.
    """
    task = asyncio.ensure_future(connecting)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _arguments(counter: LeasedCounter, order: Order, wall_s: float) -> list[str | int]:
    kind = "s" if counter.key.span is None else "m" if counter.key.span == "minute" else "c"
    return [
        order.amount,
        kind,
        *begins(counter, wall_s),
        order.taken,
        order.untaken,
        order.taken_before,
        order.untaken_before,
        order.held,
        order.idle,
        order.need,
        order.least,
        order.ahead,
        order.ledger,
        int(order.is_again),
        int(1000 * order.ledger_age_s),
    ]


def _parsed(reply: list[bytes]) -> tuple[list[bytes], list[int]]:
    return reply[:REPLY_HEAD], [int(number) for number in reply[REPLY_HEAD:]]


def _grant(fields: list[int]) -> Grant:
    known, granted, available, elsewhere, lost, lease_ms, age_ms, room_ms, ended_ms, early = fields
    return Grant(
        is_known=bool(known),
        granted=granted,
        available=available,
        elsewhere=elsewhere,
        is_lost=bool(lost),
        lease_s=lease_ms / 1000,
        age_s=age_ms / 1000,
        room_s=room_ms / 1000,
        ended_s=ended_ms / 1000,
        is_ledger_early=bool(early),
    )
