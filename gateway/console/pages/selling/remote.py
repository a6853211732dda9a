"""This machine's account at the configured marketplace, read over HTTP as the agent does."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from accounting.money import format_usd
from gateway.console.pages.selling.account import (
    PAYOUTS_SHOWN,
    Bounds,
    Conditions,
    Connect,
    Mine,
    PayoutLine,
    Standing,
    standing_of,
)
from gateway.errors import FeatureUnsupported, PaymentRefused
from market.network.errors import Unreachable
from runtime.errors import NotFound, Overloaded, RequestInvalid

if TYPE_CHECKING:
    from market.network.outbound import OutboundReply

_ASK_S = 8.0

S = TypeVar("S", bound=Struct)


class _Connect(Struct, frozen=True):
    ready: bool
    reason: str | None = None


class _Payouts(Struct, frozen=True):
    data: tuple[PayoutLine, ...]


class _Link(Struct, frozen=True):
    url: str


class _Refusal(Struct, frozen=True):
    message: str
    code: str | None = None
    param: str | None = None


class _Refused(Struct, frozen=True):
    error: _Refusal


@dataclass(frozen=True, slots=True)
class RemoteAccount:
    """This machine's account at the configured marketplace, used with the owner's key from the settings."""

    url: str
    key: str | None
    allows_loopback: bool

    @property
    def marketplace(self) -> str:
        return self.url.partition("://")[2]

    @property
    def is_here(self) -> bool:
        return False

    async def conditions(self) -> Conditions:
        return await self._ask("/market/v1/marketplace", Conditions)

    async def standing(self) -> Standing:
        return standing_of(await self._ask("/market/v1/sellers/me", Mine))

    async def connect(self) -> Connect:
        try:
            found = await self._ask("/accounting/v1/sellers/me", _Connect)
        except NotFound:
            return Connect(False)
        return Connect(True, found.ready, found.reason)

    async def onboard(self, once: str) -> str:
        """Return the link to Stripe's onboarding. Raises Overloaded if the marketplace gives no https link."""
        url = (await self._ask("/accounting/v1/sellers/onboard", _Link, {}, once)).url
        if not url.startswith("https://"):
            raise Overloaded(f"Invalid answer from {self.marketplace}: the link does not lead to Stripe.")
        return url

    async def payouts(self) -> tuple[PayoutLine, ...]:
        return (await self._ask(f"/accounting/v1/payouts?limit={PAYOUTS_SHOWN}", _Payouts)).data

    async def pay_out(self, amount_nano: int, once: str) -> PayoutLine:
        return await self._ask("/accounting/v1/payouts", PayoutLine, {"amount": format_usd(amount_nano)}, once)

    async def bounds(self) -> Bounds:
        return Bounds()

    async def _ask(self, path: str, shape: type[S], body: dict[str, Any] | None = None, once: str = "") -> S:
        """Send a request. Raises Overloaded, NotFound, RequestInvalid with the marketplace's message."""
        from market.network.outbound import Outbound

        headers = {"accept": "application/json"}
        if not path.startswith("/market/v1/marketplace"):
            if self.key is None:
                raise RequestInvalid(
                    "selling.marketplace_key is missing. Set it to the key of your marketplace account."
                )
            if not self.key.isascii() or not self.key.isprintable():
                raise RequestInvalid(
                    "selling.marketplace_key is invalid: it has characters that keys do not contain."
                )
            headers["authorization"] = f"Bearer {self.key}"
        if once:
            headers |= {"idempotency-key": once, "content-type": "application/json"}
        packed = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(_ASK_S), Outbound(self.allows_loopback, named=[self.url]) as outbound:
                reply = await outbound.ask(self.url + path, packed, headers=headers, timeout_s=_ASK_S)
        except (Unreachable, TimeoutError) as error:
            why = str(error) or "it timed out"
            raise Overloaded(
                f"The marketplace {self.marketplace} does not answer: {why}. Try again later."
            ) from None
        return read_reply(reply, shape, self.marketplace)


def read_reply(reply: "OutboundReply", shape: type[S], marketplace: str) -> S:
    """Return a marketplace's answer, or raise its error as a gateway error; the answer is untrusted.

    Raises Overloaded for an unreadable answer and for statuses 429 and 5xx. Raises FeatureUnsupported, NotFound
    and PaymentRefused as the marketplace does, otherwise RequestInvalid.
    """
    try:
        if reply.status == 200:
            return msgspec.json.decode(reply.body, type=shape)
        refusal = msgspec.json.decode(reply.body, type=_Refused).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Overloaded(f"Invalid answer from {marketplace} (status {reply.status}).") from None
    message = f"The marketplace says: {refusal.message[:300]}"
    if refusal.code == "unsupported_feature":
        raise FeatureUnsupported(message)
    if reply.status == 404:
        raise NotFound(message)
    if reply.status >= 500 or reply.status == 429:
        raise Overloaded(message)
    if reply.status == 402:
        raise PaymentRefused(message)
    raise RequestInvalid(message, param=refusal.param)
