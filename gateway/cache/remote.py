"""Answers that several gateways share, unencrypted, in Redis. Answers to private requests are never stored there.

If Redis is unavailable, nothing is found and nothing is stored.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.cache.stored import StoredAnswer

log = structlog.get_logger(__name__)

_TIMEOUT_S = 0.05
# After a failure, Redis is not asked for this long.
_PAUSE_S = 2.0
_BYTES_MAX = 4 * 2**20
_decoder = msgspec.msgpack.Decoder(StoredAnswer)


class RemoteAnswerStore:
    """The same answers under the same fingerprints as in the process, with the same lifetime.

    `clock` gives seconds that never go back.
    """

    def __init__(
        self, redis: Redis, prefix: str, lasts_s: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._prefix = prefix.encode() + b":answer:"
        self._lasts_s = lasts_s
        self._clock = clock
        self._away_until_s = 0.0

    async def get(self, key: bytes) -> StoredAnswer | None:
        if self._is_away():
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                content = await self._redis.get(self._prefix + key)
            return _decoder.decode(content) if isinstance(content, bytes) else None
        except (RedisError, OSError, TimeoutError) as error:
            self._note(error)
        except msgspec.DecodeError:
            log.warning("cached answer cannot be read")
        return None

    async def put(self, key: bytes, answer: StoredAnswer) -> None:
        if self._is_away() or len(answer.body) > _BYTES_MAX:
            return
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._redis.set(self._prefix + key, msgspec.msgpack.encode(answer), ex=self._lasts_s)
        except (RedisError, OSError, TimeoutError) as error:
            self._note(error)

    def _is_away(self) -> bool:
        return self._clock() < self._away_until_s

    def _note(self, error: Exception) -> None:
        self._away_until_s = self._clock() + _PAUSE_S
        log.warning("Redis does not answer: its cached answers are not used", reason=type(error).__name__)
