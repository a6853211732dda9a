"""Payments put together from the settings, running beside the ledger until the gateway ends."""

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
    """Payments over the ledger of `writer`. The caller starts `Till.keeper`.

    `check` raises LedgerBroken while the ledger breaks a rule.

    Raises:
        SettingsInvalid: the key's file cannot be used, or the ledger is of the other mode.
    """
    wanted = settings.payments
    try:
        keep_mode(write, is_live=is_live(secret_key(wanted)))
    except WrongMode as error:
        raise SettingsInvalid(
            f"payments.secret_key: {error}; test money and real money need a ledger each"
        ) from None
    stripe = Stripe(secret_key(wanted), base_url=wanted.base_url)
    calls = Calls(stripe, write)
    context = PaymentsContext(Ledger(writer, read), calls, write, terms_of(settings), check=check)
    inbox = Inbox(
        write,
        {
            "account": [secret.get_secret_value() for secret in wanted.webhook_secrets],
            "connect": [secret.get_secret_value() for secret in wanted.connect_webhook_secrets],
        },
        stripe.is_live,
        calls.failpoint,
        wanted.account_id,
    )
    payments = open_payments(context, inbox, grace_s=wanted.grace_h * _HOUR_S)
    holder = f"{os.getpid()}-{uuid.uuid4().hex}"
    chores = Chores(read, write, holder, is_alone=settings.database.dsn is None)
    frozen = FrozenUsers(read)
    frozen.look()
    schedule = Schedule(wanted.tick_s, wanted.daily_hour, wanted.payout_schedule, wanted.days_kept)
    return PaymentsService(payments, Keeper(payments, chores, frozen, schedule), frozen)


def watch(payments_service: PaymentsService, metrics: Metrics) -> None:
    """Let the metrics say how payments are."""
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
    # The same rules as for a key in the settings, told without it.
    if not found.startswith(("sk_", "rk_")) or not found.isascii() or " " in found:
        raise SettingsInvalid(f"payments.secret_key_file: {path} holds no secret key of Stripe's")
    return found


def terms_of(settings: Settings) -> PaymentTerms:
    """This gateway's payment terms from the settings."""
    wanted, server = settings.payments, settings.server
    own = settings.identity.public_url or f"http://127.0.0.1:{server.port}"
    console = f"{own.rstrip('/')}/console"
    return PaymentTerms(
        topup_amounts_nano=tuple(parse_usd(text) for text in wanted.topup_amounts_usd),
        fee_bps=wanted.fee_bps,
        fee_min_nano=parse_usd(wanted.fee_min_usd),
        payout_min_nano=parse_usd(wanted.payout_min_usd),
        payout_day_max_nano=parse_usd(wanted.payout_day_max_usd),
        account_rest_s=wanted.account_rest_h * _HOUR_S,
        pool_rest_s=wanted.pool_rest_days * 24 * _HOUR_S,
        # Stripe puts its session's id in: the page then says which top-up it is about.
        success_url=wanted.success_url or f"{console}/balance/paid?session={{CHECKOUT_SESSION_ID}}",
        cancel_url=wanted.cancel_url or f"{console}/balance/cancelled",
        onboarding_url=wanted.onboarding_url or f"{console}/selling/earnings",
    )
