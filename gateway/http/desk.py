"""Who answers the hot routes, as their connections see it."""

from collections.abc import Mapping
from typing import Protocol

from gateway.dialects.base import Route
from gateway.http.exchange import Exchange
from gateway.identity.caller import Caller
from runtime.http.proxies import TrustedProxies


class RequestHandler(Protocol):
    """Knows callers, takes whole requests, answers each."""

    @property
    def routes(self) -> Mapping[bytes, Route]:
        """Of POST, by path."""

    @property
    def body_bytes_max(self) -> int: ...

    @property
    def proxies(self) -> TrustedProxies:
        """Who may say from whom a request comes."""

    def known(self, token: str) -> Caller | None:
        """The caller of a token that was seen just now."""

    async def identify(self, token: str, address: str) -> Caller:
        """Raises KeyInvalid, and what else stands against the caller."""

    async def answer(self, exchange: Exchange) -> None:
        """Answer, one way or the other; the exchange's request is whole and its caller known."""
