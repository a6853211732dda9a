"""A seller's account where sales are posted: here if this gateway is the marketplace, else at the configured one.

Both kinds of account have the same methods. They raise Overloaded if the marketplace does not answer, and otherwise
what routes raise. Methods about payments raise FeatureUnsupported at a marketplace without payments.
"""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from accounting.errors import AmountInvalid
from accounting.money import format_usd, parse_usd
from accounting.payments.tables import Payout
from gateway.admin import payments
from gateway.app_state import Marketplace, OptionalPayments, Payments
from gateway.console.access import Visitor
from gateway.console.pages.selling.access import Sources, settings_now
from gateway.errors import FeatureUnsupported, PaymentRefused
from market.network.errors import Unreachable
from market.settings.seller import SellingSettings
from runtime.errors import NotFound, Overloaded, RequestInvalid, ServiceError
from runtime.times import at

if TYPE_CHECKING:
    from market.network.outbound import OutboundReply

PAYOUTS_SHOWN = 20
_ASK_S = 8.0
_DAY_NS = 86_400 * 10**9
# With the minimum payout, the daily limit has no room for more.
_OF_A_DAY = 200
_GONE = ("refused", "cancelled")

S = TypeVar("S")
Count = Annotated[int, Meta(ge=0)]
Bps = Annotated[int, Meta(ge=0, le=10_000)]


class Nano(int):
    """An amount in nano-USD; marketplaces send it as a decimal string in USD."""


class _Earned(Struct, frozen=True):
    maturing: Nano
    payable: Nano
    reserve: Nano
    owed: Nano


class Lacking(Struct, frozen=True):
    """What a seller still needs to leave the new-seller period."""

    jobs: Count
    buyers: Count
    days: Count


class Standing(Struct, frozen=True, rename={"suspended_reason": "suspended", "is_new": "probation"}):
    """The answer of `/market/v1/sellers/me`: the earnings, and what is needed to leave the new-seller period."""

    account: str
    identities: tuple[str, ...]
    suspended_reason: str | None
    earned: _Earned
    is_new: bool
    lacking: Lacking


class Probation(Struct, frozen=True):
    days: Count
    jobs: Count
    buyers: Count
    reserve_bps: Bps
    maturity_days: Count


class Conditions(Struct, frozen=True):
    """A marketplace's terms from `/market/v1/marketplace`. `fee_bps` is hundredths of a percent of the sales."""

    identity: str
    fee_bps: Bps
    probation: Probation
    maturity_days: Count


class PayoutLine(Struct, frozen=True, rename={"amount_nano": "amount"}):
    """A payout from `/accounting/v1/payouts`."""

    id: str
    amount_nano: Nano
    status: str
    attempt: int
    reason: str | None
    created: Annotated[datetime, Meta(tz=True)]

    @property
    def created_ns(self) -> int:
        return int(self.created.timestamp()) * 10**9


class Connect(Struct, frozen=True, rename={"is_ready": "ready"}):
    """State of the payout account: missing, unfinished at Stripe, or ready."""

    is_ready: bool
    reason: str | None = None
    has_account: bool = True


@dataclass(frozen=True, slots=True)
class Bounds:
    """Payout limits in nano-USD; `paid_today_nano` counts against the daily limit. None if unknown."""

    least_nano: int | None = None
    day_nano: int | None = None
    paid_today_nano: int = 0


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
class OwnAccount:
    """The visitor's account at this gateway."""

    desk: Marketplace
    payments_service: OptionalPayments
    user_id: str
    marketplace: str = "this marketplace"
    is_here: bool = True

    async def conditions(self) -> Conditions:
        terms = self.desk.context.terms
        probation = Probation(
            terms.probation_days,
            terms.probation_jobs,
            terms.probation_buyers,
            terms.reserve_bps,
            terms.maturity_days_new,
        )
        return Conditions(self.desk.context.speaker.id, terms.fee_bps, probation, terms.maturity_days)

    async def standing(self) -> Standing:
        # Marketplace and market code is imported on use only: most gateways have neither.
        from gateway.admin.marketplace import show_seller

        return msgspec.convert(await show_seller(self.desk, self.user_id), Standing, dec_hook=_read)

    async def connect(self) -> Connect:
        payments_service = self._payments_service()
        try:
            account = await payments_service.ask(payments_service.payments.sellers.find, self.user_id)
        except NotFound:
            return Connect(is_ready=False, has_account=False)
        return Connect(account.is_ready, account.frozen_reason or account.reason, account.account_id is not None)

    async def onboard(self, once: str) -> str:
        """Return the address of a Stripe page, valid for minutes; `once` is the idempotency key."""
        return await payments.onboard(self._payments_service(), self.user_id, once)

    async def payouts(self) -> tuple[PayoutLine, ...]:
        payments_service = self._payments_service()
        found = await payments_service.ask(
            payments_service.payments.payouts.newest, self.user_id, None, PAYOUTS_SHOWN
        )
        return tuple(map(_line, found))

    async def pay_out(self, amount_nano: int, once: str) -> PayoutLine:
        """Open a payout; repeated with the same `once` it is the same payout."""
        return _line(await payments.open_payout(self._payments_service(), self.user_id, once, amount_nano))

    async def bounds(self) -> Bounds:
        payments_service = self._payments_service()
        terms = payments_service.payments.payouts.context.terms
        rows = await payments_service.ask(payments_service.payments.payouts.newest, self.user_id, None, _OF_A_DAY)
        since_ns = time.time_ns() - _DAY_NS
        today = (row.amount_nano for row in rows if row.created_ns > since_ns and row.status not in _GONE)
        return Bounds(terms.payout_min_nano, terms.payout_day_max_nano, sum(today))

    def _payments_service(self) -> Payments:
        return payments.payments_of(self.payments_service)


def _line(row: Payout) -> PayoutLine:
    created = datetime.fromisoformat(at(row.created_ns))
    return PayoutLine(row.id, Nano(row.amount_nano), row.status, row.attempt, row.reason, created)


@dataclass(frozen=True, slots=True)
class RemoteAccount:
    """This machine's account at the configured marketplace, read over HTTP with the owner's key from the settings."""

    url: str
    key: str | None = field(repr=False)
    allows_loopback: bool
    is_here: bool = False

    @property
    def marketplace(self) -> str:
        return self.url.partition("://")[2]

    async def conditions(self) -> Conditions:
        return await self._ask("/market/v1/marketplace", Conditions)

    async def standing(self) -> Standing:
        return await self._ask("/market/v1/sellers/me", Standing)

    async def connect(self) -> Connect:
        try:
            return await self._ask("/accounting/v1/sellers/me", Connect)
        except NotFound:
            return Connect(is_ready=False, has_account=False)

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


Account = OwnAccount | RemoteAccount


async def account_now(visitor: Visitor, sources: Sources) -> Account | None:
    """Return what `account_of` returns by the settings as the agent would read them."""
    return account_of(visitor, sources, await settings_now(sources.settings))


def account_of(visitor: Visitor, sources: Sources, settings: SellingSettings) -> Account | None:
    """Return the account where this visitor's sales are posted; None if no marketplace is known.

    The configured marketplace belongs to the machine: only operators see it; sellers see their account here.
    """
    if visitor.is_operator and settings.marketplace_url is not None:
        key = settings.marketplace_key.get_secret_value() if settings.marketplace_key else None
        return RemoteAccount(settings.marketplace_url.rstrip("/"), key, settings.allows_loopback)
    if sources.marketplace is None:
        return None
    return OwnAccount(sources.marketplace, sources.payments_service, visitor.caller.user_id)


async def standing_of(account: Account | None) -> tuple[Standing | None, str]:
    """Return the account's standing, or why there is none."""
    if account is None:
        return None, ""
    try:
        return await account.standing(), ""
    except ServiceError as error:
        return None, error.message


def read_reply(reply: "OutboundReply", shape: type[S], marketplace: str) -> S:
    """Return a marketplace's answer, or raise its error as a gateway error; the answer is untrusted.

    Raises Overloaded for an unreadable answer and for statuses 429 and 5xx. Raises FeatureUnsupported, NotFound
    and PaymentRefused as the marketplace does, otherwise RequestInvalid.
    """
    try:
        if reply.status == 200:
            return msgspec.json.decode(reply.body, type=shape, dec_hook=_read)
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


def _read(kind: type, given: Any) -> Nano:
    """Read an amount. Raises ValueError, which msgspec reports as an invalid answer."""
    if kind is not Nano or not isinstance(given, str):
        raise ValueError("not an amount")
    try:
        return Nano(parse_usd(given, allow_negative=True))
    except AmountInvalid as error:
        raise ValueError(str(error)) from None
