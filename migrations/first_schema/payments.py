"""Calls to Stripe, its messages, and the progress of top-ups, refunds, disputes and payouts."""

import sqlalchemy as sa
from alembic import op

from migrations.first_schema.columns import blob, boolean, integer, number, numbers, text, texts


def create() -> None:
    _create_payers()
    _create_topups()
    _create_payouts()
    _create_stripe()
    _create_requests()


def _create_payers() -> None:
    op.create_table(
        "payer",
        text("user_id", key=True),
        *texts("customer_id", "method_id", optional=True),
        *numbers("auto_below_nano", "auto_credit_nano", optional=True),
        integer("auto_failures"),
        text("frozen_reason", optional=True),
        integer("auto_day_max", default="4"),
        number("auto_paused_until_ns", default="0"),
        number("moving_until_ns", default="0"),
        number("auto_month_nano", default="500000000000"),
    )
    op.create_index("payer_frozen", "payer", ["frozen_reason"])
    op.create_index("payer_auto", "payer", ["auto_below_nano"])


def _create_topups() -> None:
    op.create_table(
        "topup",
        text("id", key=True),
        text("user_id"),
        *numbers("credit_nano", "fee_nano"),
        boolean("is_auto"),
        boolean("saves_method"),
        text("status"),
        *texts("session_id", "intent_id", "url", "reason", optional=True),
        *numbers("created_ns", "updated_ns"),
        sa.UniqueConstraint("session_id", name="topup_session"),
        sa.UniqueConstraint("intent_id", name="topup_intent"),
    )
    op.create_index("topup_user", "topup", ["user_id", "created_ns"])
    op.create_index("topup_status", "topup", ["status", "updated_ns"])
    op.create_table(
        "topup_refund",
        text("id", key=True),
        *texts("topup_id", "user_id"),
        number("amount_nano"),
        text("status"),
        *texts("refund_id", "reason", optional=True),
        *numbers("created_ns", "updated_ns"),
        sa.UniqueConstraint("refund_id", name="topup_refund_stripe"),
    )
    op.create_index("topup_refund_topup", "topup_refund", ["topup_id"])
    op.create_index("topup_refund_status", "topup_refund", ["status", "updated_ns"])
    op.create_index("topup_refund_user", "topup_refund", ["user_id", "created_ns"])
    op.create_table(
        "payment_dispute",
        text("id", key=True),
        *texts("topup_id", "user_id"),
        number("amount_nano"),
        text("status"),
        *numbers("created_ns", "updated_ns"),
    )
    op.create_index("payment_dispute_user", "payment_dispute", ["user_id"])
    op.create_index("payment_dispute_status", "payment_dispute", ["status"])


def _create_payouts() -> None:
    op.create_table(
        "seller_account",
        text("seller_id", key=True),
        text("account_id", optional=True),
        boolean("is_ready"),
        number("changed_ns"),
        *texts("reason", "frozen_reason", optional=True),
        sa.UniqueConstraint("account_id", name="seller_account_stripe"),
    )
    op.create_table(
        "seller_payout",
        text("id", key=True),
        *texts("seller_id", "account_id"),
        number("amount_nano"),
        text("status"),
        *texts("transfer_id", "payout_id", optional=True),
        integer("attempt"),
        text("reason", optional=True),
        *numbers("created_ns", "updated_ns"),
        sa.UniqueConstraint("transfer_id", name="seller_payout_transfer"),
    )
    op.create_index("seller_payout_seller", "seller_payout", ["seller_id", "created_ns"])
    op.create_index("seller_payout_status", "seller_payout", ["status", "updated_ns"])


def _create_stripe() -> None:
    op.create_table(
        "stripe_call",
        text("key", key=True),
        *texts("resource", "params", "account", "status"),
        integer("attempt"),
        text("answer", optional=True),
        *numbers("created_ns", "sent_ns"),
    )
    op.create_table(
        "stripe_event",
        text("id", key=True),
        *texts("kind", "account", "object_id", "status"),
        integer("tries"),
        *numbers("due_ns", "received_ns"),
        text("reason", optional=True),
    )
    op.create_index("stripe_event_due", "stripe_event", ["status", "due_ns"])
    op.create_table(
        "stripe_txn",
        text("id", key=True),
        *texts("kind", "subject"),
        *numbers("net_nano", "created_ns"),
    )
    op.create_index("stripe_txn_subject", "stripe_txn", ["subject"])
    op.create_index("stripe_txn_created", "stripe_txn", ["created_ns"])


def _create_requests() -> None:
    """Create requests to /accounting/v1 by their key, with their answers, and the periodic jobs of payments."""
    op.create_table(
        "idempotent_request",
        blob("key_digest", key=True),
        blob("request_hash"),
        text("claim_token"),
        *numbers("claimed_until_ns", "created_ns"),
        integer("status", optional=True),
        blob("response", optional=True),
    )
    op.create_index("idempotent_request_created", "idempotent_request", ["created_ns"])
    op.create_table(
        "payment_job",
        text("name", key=True),
        text("holder"),
        *numbers("claimed_until_ns", "done_ns"),
        text("details"),
    )
