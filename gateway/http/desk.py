"""The interface of the hot routes' handler, for their connections."""

from collections.abc import Mapping
from typing import Protocol

from gateway.dialects.base import Route
from gateway.http.exchange import Exchange
from gateway.identity.caller import Caller
from runtime.http.proxies import TrustedProxies


class RequestHandler(Protocol):
    """Looks up callers, takes whole requests, and answers them."""

    @property
    def routes(self) -> Mapping[bytes, Route]:
        """The hot routes of POST, by path."""

    @property
    def body_bytes_max(self) -> int: ...

    @property
    def proxies(self) -> TrustedProxies:
        """The trusted proxies, which may name a request's client."""

    def known(self, token: str) -> Caller | None:
        """Return the caller of a recently seen token."""

    async def identify(self, token: str, address: str) -> Caller:
        """Return the caller. Raises KeyInvalid, and errors that concern the caller."""

    async def answer(self, exchange: Exchange) -> None:
        """Answer in any case; the exchange's request is complete and its caller known."""
