"""Open the answer cache: in this process, and in Redis if one is configured."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from gateway.cache.answers import Aliases, AnswerCache, Embed
from gateway.settings.cache import CacheSettings
from gateway.settings.limits import RedisSettings


@asynccontextmanager
async def open_answers(
    settings: CacheSettings, redis: RedisSettings, embed: Embed | None, aliases: Aliases = dict
) -> AsyncGenerator[AnswerCache]:
    """Yield the cache.

    `embed` serves questions of the same meaning; `aliases` returns what names currently route to.
    """
    if redis.url is None or settings.answers == "off":
        yield AnswerCache(settings, embed=embed, aliases=aliases)
        return
    # Importing redis takes a fifth of a second, and most gateways run alone.
    from redis.asyncio import Redis

    from gateway.cache.remote import RemoteAnswerStore

    async with Redis.from_url(redis.url.get_secret_value()) as client:
        yield AnswerCache(settings, RemoteAnswerStore(client, redis.prefix, settings.lasts_s), embed, aliases)
