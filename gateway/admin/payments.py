"""Payments: top-ups, refunds and payouts, and what operators do about them. Amounts are in nano-USD.

Functions raise the errors of `PaymentsService.ask`, and each writing one acts once for its idempotency key `once`.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from sqlalchemy.orm import Session

from accounting.money import UsdAmount
from accounting.payments.tables import Payer, Payout, Topup, TopupRefund
from accounting.payments.terms import AUTO_DAY_MAX, AUTO_MONTH_NANO
from gateway.admin.fields import Body, Facts, Text
from gateway.billing.asked import id_of
from gateway.billing.ledger_service import LedgerService
from gateway.errors import FeatureUnsupported, RoleForbids
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory
from runtime.errors import NotFound

if TYPE_CHECKING:
    from accounting.payments.payouts import Payouts
    from accounting.payments.refunds import Refunds
    from accounting.payments.topups import Topups
    from gateway.admin.authority import Authority
    from gateway.billing.payments.payments_service import PaymentsService

PerDay = Annotated[int, Field(ge=1, le=24)]
Kind = Literal["topups", "refunds", "payouts"]


class NewTopup(Body):
    amount: UsdAmount
    save_method: bool = False
    """Keep the method of payment, for automatic top-ups."""


class AutoTopup(Body):
    """Buy `amount` with the saved method whenever fewer credits than `below` are left, at most `per_day` times.

    The total in a UTC month, including fees, is at most `per_month`.
    """

    below: UsdAmount
    amount: UsdAmount
    per_day: PerDay = AUTO_DAY_MAX
    per_month: UsdAmount = AUTO_MONTH_NANO


class Frozen(Body):
    """`why` null ends it, unless a dispute is open."""

    why: Text | None


def payments_of(payments: "PaymentsService | None") -> "PaymentsService":
    """Raises FeatureUnsupported if there are none."""
    if payments is None:
        raise FeatureUnsupported(
            "This gateway has no payments, because Stripe is not configured."
            " An operator sets payments.secret_key and payments.webhook_secrets."
        )
    return payments


async def show_auto(payments: "PaymentsService", user_id: str) -> tuple[Payer, int]:
    """Return the settings of a user's automatic top-ups, and what these have cost this month in nano-USD."""
    payer = await payments.ask(payments.payments.payers.find, user_id)
    return payer, await payments.ask(payments.payments.topups.spent_automatically, user_id)


async def set_auto(payments: "PaymentsService", user_id: str, new: AutoTopup | None) -> Payer:
    """Turn automatic top-ups on, or with None off."""
    payers = payments.payments.payers
    if new is None:
        await payments.ask(payers.top_up_no_more, user_id)
    else:
        await payments.ask(payers.top_up_below, user_id, new.below, new.amount, new.per_day, new.per_month)
    return await payments.ask(payers.find, user_id)


async def open_topup(payments: "PaymentsService", user_id: str, once: str, new: NewTopup) -> Topup:
    """Start a top-up: `url` is where to pay; the credits are added when Stripe confirms the payment."""
    topup_id, topups = id_of("topup", user_id, once), payments.payments.topups
    return await payments.ask(lambda: topups.open(topup_id, user_id, new.amount, saves_method=new.save_method))


async def open_refund(
    payments: "PaymentsService", actor: Actor, once: str, topup_id: str, amount_nano: int
) -> TopupRefund:
    """Refund a top-up: the card that paid gets the money back."""
    refund_id = id_of("refund", actor.name, once)
    return await payments.ask(payments.payments.refunds.open, refund_id, topup_id, amount_nano)


async def onboard(payments: "PaymentsService", user_id: str, once: str) -> str:
    """Return a page of Stripe's, which expires within minutes, where a seller sets up their payout account."""
    return await payments.ask(payments.payments.sellers.onboard, user_id, id_of("link", user_id, once))


async def open_payout(payments: "PaymentsService", user_id: str, once: str, amount_nano: int) -> Payout:
    """Pay out available earnings."""
    payout_id = id_of("payout", user_id, once)
    return await payments.ask(payments.payments.payouts.open, payout_id, user_id, amount_nano)


async def freeze(
    payments: "PaymentsService",
    authority: "Authority",
    user_id: str,
    why: str | None,
    what: Literal["payments", "sellers"] = "payments",
) -> Facts:
    """Freeze a user, who can then neither spend nor buy, or payouts to a seller; `why` None ends it.

    An open dispute freezes a user in any case: `frozen` of the answer says why they still are. Raises NotFound.
    """
    user = await asyncio.to_thread(authority.directory.users.ever, user_id)
    facts: Facts = {"user" if what == "payments" else "seller": user.user_id, "frozen": why}
    await authority.record(f"{what}.freeze", f"user:{user.user_id}", facts)
    if what == "sellers":
        await payments.ask(payments.payments.sellers.freeze, user.user_id, why)
        return facts
    await payments.ask(payments.payments.payers.freeze, user.user_id, why)
    await payments.ask(payments.frozen.look)
    return facts | {"frozen": payments.frozen.why(user.user_id)}


async def show_payments(payments: "PaymentsService", ledger: LedgerService) -> Facts:
    """Return the state of payments: mode, queued and failed webhooks, the last reconciliation."""
    return await ledger.look(lambda session: state_of_payments(session, payments.mode))


def state_of_payments(session: Session, mode: str) -> Facts:
    """Return the state of payments with their mode, beside a running gateway or without one."""
    from accounting.payments.status_report import status_report

    return {"mode": mode, **status_report(session)}


async def retry_now(payments: "PaymentsService", authority: "Authority", message: str) -> Facts:
    """Retry a failed webhook of Stripe's at once."""
    facts = await payments.ask(retry_webhook, authority.directory, authority.actor, message)
    payments.keeper.wake()
    return facts


def retry_webhook(directory: Directory, actor: Actor, message: str) -> Facts:
    """Let a running gateway retry a failed webhook of Stripe's within seconds.

    Raises PaymentNotFound, or PaymentInvalid if it has not failed.
    """
    from accounting.payments.worker import retry

    retry(directory.write, message, time.time_ns())
    facts = {"id": message, "status": "waiting"}
    directory.audit.add(actor, "payments.retry", f"message:{message}", facts)
    return facts


async def list_payments(
    kind: Kind,
    payments: "PaymentsService",
    authority: "Authority",
    user_id: str | None,
    before: str | None,
    limit: int,
) -> tuple[list[Any], str | None]:
    """List payments, newest first: the caller's; for operators those of the requested user, or with None all.

    Also return the `before` of the next page, or None. Raises RoleForbids.
    """
    if not authority.is_operator:
        assert authority.caller, "the machine is an operator"
        if user_id not in (None, authority.caller.user_id):
            raise RoleForbids("user: only instance admins see what others paid", param="user")
        user_id = authority.caller.user_id
    found: list[Any] = await payments.ask(_stored(payments, kind).newest, user_id, before, limit + 1)
    return found[:limit], found[limit - 1].id if len(found) > limit else None


async def show_payment(kind: Kind, payments: "PaymentsService", authority: "Authority", payment_id: str) -> Any:
    """Return a payment, which only its owner and operators may see. Raises NotFound, also for another user's."""
    found: Any = await payments.ask(_stored(payments, kind).find, payment_id)
    owner = found.seller_id if isinstance(found, Payout) else found.user_id
    if not authority.is_operator and (authority.caller is None or owner != authority.caller.user_id):
        raise NotFound(f"{payment_id} not found")
    return found


def _stored(payments: "PaymentsService", kind: Kind) -> "Topups | Refunds | Payouts":
    stored = payments.payments
    of_kind: dict[Kind, Topups | Refunds | Payouts] = {
        "topups": stored.topups,
        "refunds": stored.refunds,
        "payouts": stored.payouts,
    }
    return of_kind[kind]
