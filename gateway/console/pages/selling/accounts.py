"""The account where sales are posted: here if this gateway is the marketplace, else at the configured one."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from accounting.money import format_usd
from accounting.payments.tables import Payout
from gateway.admin import payments
from gateway.console.access import Visitor
from gateway.console.pages.selling.account import (
    PAYOUTS_SHOWN,
    Account,
    Bounds,
    Conditions,
    Connect,
    Mine,
    PayoutLine,
    Probation,
    Standing,
    standing_of,
)
from gateway.console.pages.selling.remote import RemoteAccount
from market.settings.seller import SellingSettings
from runtime.errors import NotFound
from runtime.times import at

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService
    from market.marketplace.marketplace import Marketplace

_DAY_NS = 86_400 * 10**9
# With the minimum payout, the daily limit has no room for more.
_OF_A_DAY = 200
_GONE = ("refused", "cancelled")


def account_of(visitor: Visitor, settings: SellingSettings) -> Account | None:
    """Return the account where this visitor's sales are posted; None if no marketplace is known.

    The configured marketplace belongs to the machine: only operators see it; sellers see their account here.
    """
    services = visitor.services
    if visitor.is_operator and settings.marketplace_url is not None:
        key = settings.marketplace_key.get_secret_value() if settings.marketplace_key else None
        return RemoteAccount(settings.marketplace_url.rstrip("/"), key, settings.allows_loopback)
    if services.marketplace is not None:
        return OwnAccount(services.marketplace, visitor)
    return None


@dataclass(frozen=True, slots=True)
class OwnAccount:
    """The visitor's account at this gateway."""

    desk: "Marketplace"
    visitor: Visitor

    @property
    def marketplace(self) -> str:
        return "this marketplace"

    @property
    def is_here(self) -> bool:
        return True

    @property
    def _user(self) -> str:
        return self.visitor.caller.user_id

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

        return standing_of(msgspec.convert(await show_seller(self.desk, self._user), Mine))

    async def connect(self) -> Connect:
        payments_service = self._payments_service()
        try:
            account = await payments_service.ask(payments_service.payments.sellers.find, self._user)
        except NotFound:
            return Connect(False)
        return Connect(account.account_id is not None, account.is_ready, account.frozen_reason or account.reason)

    async def onboard(self, once: str) -> str:
        return await payments.onboard(self._payments_service(), self._user, once)

    async def payouts(self) -> tuple[PayoutLine, ...]:
        payments_service = self._payments_service()
        found = await payments_service.ask(
            payments_service.payments.payouts.newest, self._user, None, PAYOUTS_SHOWN
        )
        return tuple(map(_line, found))

    async def pay_out(self, amount_nano: int, once: str) -> PayoutLine:
        return _line(await payments.open_payout(self._payments_service(), self._user, once, amount_nano))

    async def bounds(self) -> Bounds:
        payments_service = self._payments_service()
        terms = payments_service.payments.payouts.context.terms
        rows = await payments_service.ask(payments_service.payments.payouts.newest, self._user, None, _OF_A_DAY)
        since_ns = time.time_ns() - _DAY_NS
        today = (row.amount_nano for row in rows if row.created_ns > since_ns and row.status not in _GONE)
        return Bounds(terms.payout_min_nano, terms.payout_day_max_nano, sum(today))

    def _payments_service(self) -> "PaymentsService":
        return payments.payments_of(self.visitor.services)


def _line(row: Payout) -> PayoutLine:
    return PayoutLine(row.id, format_usd(row.amount_nano), row.status, row.attempt, row.reason, at(row.created_ns))
