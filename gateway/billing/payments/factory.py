"""Assembles payments from the settings; they run beside the ledger until the gateway ends."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.orm import Session

from accounting.ledger.writer import Writer
from accounting.money import parse_usd
from accounting.payments.calls import Calls
from accounting.payments.chores import Chores
from accounting.payments.client import Stripe, is_live
from accounting.payments.context import PaymentsContext
from accounting.payments.errors import WrongMode
from accounting.payments.frozen import FrozenUsers
from accounting.payments.inbox import Inbox
from accounting.payments.keeper import Keeper, Schedule, age_s
from accounting.payments.ledger import Ledger
from accounting.payments.mode import keep_mode
from accounting.payments.payments import open_payments
from accounting.payments.terms import PaymentTerms
from gateway.billing.payments.payments_service import PaymentsService
from gateway.metrics.metrics import Metrics
from gateway.settings import PaymentsSettings, Settings
from runtime.settings import SettingsInvalid

_OTHERS = 0o077
_HOUR_S = 3600


def open_payments_service(
    settings: Settings,
    writer: Writer,
    read: Callable[[], Session],
    write: Callable[[], Session],
    check: Callable[[], None],
) -> PaymentsService:
    """Payments over the ledger of `writer`. The caller starts `PaymentsService.keeper`.

    `check` raises LedgerBroken while the ledger breaks a rule.

    Raises:
        SettingsInvalid: the key's file cannot be used, or the ledger is of the other mode.
    """
    payments_settings = settings.payments
    try:
        keep_mode(write, is_live=is_live(secret_key(payments_settings)))
    except WrongMode as error:
        raise SettingsInvalid(
            f"payments.secret_key: {error}; test mode and live mode need separate ledgers"
        ) from None
    stripe = Stripe(secret_key(payments_settings), base_url=payments_settings.base_url)
    calls = Calls(stripe, write)
    context = PaymentsContext(Ledger(writer, read), calls, write, terms_of(settings), check=check)
    inbox = Inbox(
        write,
        {
            "account": [secret.get_secret_value() for secret in payments_settings.webhook_secrets],
            "connect": [secret.get_secret_value() for secret in payments_settings.connect_webhook_secrets],
        },
        stripe.is_live,
        calls.failpoint,
        payments_settings.account_id,
    )
    payments = open_payments(context, inbox, grace_s=payments_settings.grace_h * _HOUR_S)
    holder = f"{os.getpid()}-{uuid.uuid4().hex}"
    chores = Chores(read, write, holder, is_alone=settings.database.dsn is None)
    frozen = FrozenUsers(read)
    frozen.look()
    schedule = Schedule(
        payments_settings.tick_s,
        payments_settings.daily_hour,
        payments_settings.payout_schedule,
        payments_settings.days_kept,
    )
    return PaymentsService(payments, Keeper(payments, chores, frozen, schedule), frozen)


def watch(payments_service: PaymentsService, metrics: Metrics) -> None:
    """Add the state of payments to the metrics."""
    keeper = payments_service.keeper

    def note(name: str) -> dict[tuple[str, ...], float]:
        found = keeper.state.reconciliation.note
        return {(): float(found[name])} if name in found else {}

    def age() -> dict[tuple[str, ...], float]:
        ago_s = age_s(keeper.state.reconciliation)
        return {} if ago_s is None else {(): ago_s}

    metrics.payments_inbox.read = lambda: {(name,): count for name, count in keeper.state.inbox.items()}
    metrics.payments_unmatched.read = lambda: note("unmatched_count")
    metrics.payments_difference_nano.read = lambda: note("difference_nano")
    metrics.payments_reconciled_seconds.read = age


def secret_key(settings: PaymentsSettings) -> str:
    """Stripe's key from the settings or its file. Raises SettingsInvalid, without any part of the key."""
    if settings.secret_key is not None:
        return settings.secret_key.get_secret_value()
    path = settings.secret_key_file
    assert path is not None, "payments are opened where a key is set"
    try:
        if Path(path).stat().st_mode & _OTHERS:
            raise SettingsInvalid(f"payments.secret_key_file: {path} is open to other users: chmod 600 {path}")
        found = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"payments.secret_key_file: {path} cannot be read: {error}") from None
    # The same rules as for a key in the settings, without the key in the message.
    if not found.startswith(("sk_", "rk_")) or not found.isascii() or " " in found:
        raise SettingsInvalid(f"payments.secret_key_file: {path} has no Stripe secret key")
    return found


def terms_of(settings: Settings) -> PaymentTerms:
    """This gateway's payment terms from the settings."""
    payments_settings, server = settings.payments, settings.server
    own = settings.identity.public_url or f"http://127.0.0.1:{server.port}"
    console = f"{own.rstrip('/')}/console"
    return PaymentTerms(
        topup_amounts_nano=tuple(parse_usd(text) for text in payments_settings.topup_amounts_usd),
        fee_bps=payments_settings.fee_bps,
        fee_min_nano=parse_usd(payments_settings.fee_min_usd),
        payout_min_nano=parse_usd(payments_settings.payout_min_usd),
        payout_day_max_nano=parse_usd(payments_settings.payout_day_max_usd),
        account_rest_s=payments_settings.account_rest_h * _HOUR_S,
        pool_rest_s=payments_settings.pool_rest_days * 24 * _HOUR_S,
        # Stripe inserts its session's id, by which the page finds the top-up.
        success_url=payments_settings.success_url or f"{console}/balance/paid?session={{CHECKOUT_SESSION_ID}}",
        cancel_url=payments_settings.cancel_url or f"{console}/balance/cancelled",
        onboarding_url=payments_settings.onboarding_url or f"{console}/selling/earnings",
    )
