"""Create payments: calls to Stripe, its messages, and the progress of top-ups, refunds, disputes and payouts."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _money_in()
    _money_out()
    _stripe()


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")


def _text(name: str, *, optional: bool = False, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=optional, primary_key=key)


def _number(name: str, *, optional: bool = False) -> sa.Column[int]:
    return sa.Column(name, BIG, nullable=optional)


def _times() -> list[sa.Column[int]]:
    return [_number("created_ns"), _number("updated_ns")]


def _money_in() -> None:
    op.create_table(
        "payer",
        _text("user_id", key=True),
        _text("customer_id", optional=True),
        _text("method_id", optional=True),
        _number("auto_below_nano", optional=True),
        _number("auto_credit_nano", optional=True),
        sa.Column("auto_failures", sa.Integer, nullable=False),
        _text("frozen_why", optional=True),
    )
    op.create_table(
        "topup",
        _text("id", key=True),
        _text("user_id"),
        _number("credit_nano"),
        _number("fee_nano"),
        sa.Column("is_auto", sa.Boolean, nullable=False),
        sa.Column("saves_method", sa.Boolean, nullable=False),
        _text("status"),
        *(_text(name, optional=True) for name in ("session_id", "intent_id", "url", "reason")),
        *_times(),
        sa.UniqueConstraint("session_id", name="topup_session"),
        sa.UniqueConstraint("intent_id", name="topup_intent"),
    )
    op.create_index("topup_user", "topup", ["user_id", "created_ns"])
    op.create_index("topup_status", "topup", ["status", "updated_ns"])
    op.create_table(
        "topup_refund",
        _text("id", key=True),
        _text("topup_id"),
        _text("user_id"),
        _number("amount_nano"),
        _text("status"),
        *(_text(name, optional=True) for name in ("refund_id", "reason")),
        *_times(),
        sa.UniqueConstraint("refund_id", name="topup_refund_stripe"),
    )
    op.create_index("topup_refund_topup", "topup_refund", ["topup_id"])
    op.create_index("topup_refund_status", "topup_refund", ["status", "updated_ns"])
    op.create_table(
        "payment_dispute",
        _text("id", key=True),
        _text("topup_id"),
        _text("user_id"),
        _number("amount_nano"),
        _text("status"),
        *_times(),
    )
    op.create_index("payment_dispute_user", "payment_dispute", ["user_id"])


def _money_out() -> None:
    op.create_table(
        "seller_account",
        _text("seller_id", key=True),
        _text("account_id", optional=True),
        sa.Column("is_ready", sa.Boolean, nullable=False),
        _number("changed_ns"),
        *(_text(name, optional=True) for name in ("reason", "frozen_why")),
        sa.UniqueConstraint("account_id", name="seller_account_stripe"),
    )
    op.create_table(
        "seller_payout",
        _text("id", key=True),
        _text("seller_id"),
        _text("account_id"),
        _number("amount_nano"),
        _text("status"),
        *(_text(name, optional=True) for name in ("transfer_id", "payout_id")),
        sa.Column("attempt", sa.Integer, nullable=False),
        _text("reason", optional=True),
        *_times(),
        sa.UniqueConstraint("transfer_id", name="seller_payout_transfer"),
    )
    op.create_index("seller_payout_seller", "seller_payout", ["seller_id", "created_ns"])
    op.create_index("seller_payout_status", "seller_payout", ["status", "updated_ns"])


def _stripe() -> None:
    op.create_table(
        "stripe_call",
        _text("key", key=True),
        *(_text(name) for name in ("resource", "params", "account", "status")),
        sa.Column("attempt", sa.Integer, nullable=False),
        _text("answer", optional=True),
        *(_number(name) for name in ("created_ns", "sent_ns")),
    )
    op.create_table(
        "stripe_event",
        _text("id", key=True),
        *(_text(name) for name in ("kind", "account", "object_id", "status")),
        sa.Column("tries", sa.Integer, nullable=False),
        *(_number(name) for name in ("due_ns", "received_ns")),
        _text("reason", optional=True),
    )
    op.create_index("stripe_event_due", "stripe_event", ["status", "due_ns"])
    op.create_table(
        "stripe_txn",
        _text("id", key=True),
        *(_text(name) for name in ("kind", "subject")),
        *(_number(name) for name in ("net_nano", "created_ns")),
    )
    op.create_index("stripe_txn_subject", "stripe_txn", ["subject"])
    op.create_index("stripe_txn_created", "stripe_txn", ["created_ns"])
