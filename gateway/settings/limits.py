"""Settings of a Redis that several gateways share."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from runtime.settings import Section


def _is_redis_url(url: SecretStr) -> SecretStr:
    """Check the URL; the message omits it, because it may contain a password."""
    try:
        scheme = urlsplit(url.get_secret_value()).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("redis", "rediss", "unix"):
        raise ValueError("a Redis URL begins with redis://, rediss:// or unix://")
    return url


class RedisSettings(Section):
    url: Annotated[SecretStr, AfterValidator(_is_redis_url)] | None = Field(
        None, description="Redis through which several gateways share limits; without one this gateway is alone."
    )
    prefix: str = Field("millrace", pattern=r"^[\w.-]+$", description="Prefix of all keys in Redis.")
    timeout_s: float = Field(
        0.25, gt=0, le=5, description="Timeout of Redis, in seconds; then limits continue without it."
    )
