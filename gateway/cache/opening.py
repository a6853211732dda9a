"""The answer cache as a service: in this process, and in Redis where there is one."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from gateway.cache.answers import Aliases, Answers, Embed
from gateway.settings.cache import CacheSettings
from gateway.settings.limits import RedisSettings


@asynccontextmanager
async def open_answers(
    settings: CacheSettings, redis: RedisSettings, embed: Embed | None, aliases: Aliases = dict
) -> AsyncGenerator[Answers]:
    """`embed` is for answers to questions of the same meaning, `aliases` gives what names stand for just now."""
    if redis.url is None or settings.answers == "off":
        yield Answers(settings, embed=embed, aliases=aliases)
        return
    # redis takes a fifth of a second to import, and most gateways are alone.
    from redis.asyncio import Redis

    from gateway.cache.remote import RemoteShelf

    async with Redis.from_url(redis.url.get_secret_value()) as client:
        yield Answers(settings, RemoteShelf(client, redis.prefix, settings.lasts_s), embed, aliases)
