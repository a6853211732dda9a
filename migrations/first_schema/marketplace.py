"""The marketplace: sellers, allocations and the state of each channel; and signed records of other gateways."""

import sqlalchemy as sa
from alembic import op

from migrations.first_schema.columns import BIG, blob, integer, number, number_key, numbers, text, texts


def create() -> None:
    _create_sellers()
    _create_allocations()
    _create_earnings()
    _create_disputes()
    op.create_table(
        "market_record",
        sa.Column("seq", BIG, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        text("source"),
        blob("raw"),
    )


def _create_sellers() -> None:
    op.create_table(
        "marketplace_seller",
        text("user_id", key=True),
        *numbers("registered_ns", "matured_seq"),
        text("suspended_reason", optional=True),
        number("forfeited_ns", optional=True),
    )
    op.create_table("marketplace_identity", text("identity", key=True), text("user_id"), number("registered_ns"))
    op.create_index("marketplace_identity_user", "marketplace_identity", ["user_id"])
    op.create_table("marketplace_statement", text("digest", key=True), *texts("issuer", "kind", "raw"))
    op.create_index("marketplace_statement_issuer", "marketplace_statement", ["issuer"])


def _create_allocations() -> None:
    op.create_table(
        "marketplace_allocation",
        text("id", key=True),
        *texts("digest", "raw", "buyer_user_id", "seller_user_id"),
        number("limit_nano"),
        integer("fee_bps"),
        *numbers("created_ns", "expires_ns", "version"),
        *texts("evidence", "unanswered", "decisions"),
        *numbers("jobs", "draws", "drawn_nano"),
        number("next_check_ns", optional=True),
        number("drawn_ns", default="0"),
        sa.UniqueConstraint("digest", name="marketplace_allocation_digest"),
    )
    op.create_index("marketplace_allocation_buyer", "marketplace_allocation", ["buyer_user_id", "expires_ns"])
    op.create_index("marketplace_allocation_seller", "marketplace_allocation", ["seller_user_id", "expires_ns"])
    op.create_index("marketplace_allocation_check", "marketplace_allocation", ["next_check_ns"])


def _create_earnings() -> None:
    op.create_table(
        "marketplace_maturity",
        text("seller_user_id", key=True),
        text("label", key=True),
        number("amount_nano"),
        integer("reserve_bps"),
        *numbers("first_seq", "last_seq"),
        text("status"),
        number("created_ns"),
    )
    op.create_index("marketplace_maturity_status", "marketplace_maturity", ["status", "created_ns"])
    op.create_table(
        "marketplace_withheld",
        number_key("transfer_seq"),
        *texts("seller_user_id", "buyer_user_id", "charge_id"),
        number("amount_nano"),
    )
    op.create_index("marketplace_withheld_seller", "marketplace_withheld", ["seller_user_id"])


def _create_disputes() -> None:
    op.create_table(
        "marketplace_dispute",
        text("id", key=True),
        text("allocation_digest"),
        integer("sub_channel"),
        number("seq"),
        *texts("buyer_user_id", "seller_user_id", "opened_by"),
        number("fee_nano"),
        text("status"),
        *texts("buyer_text", "seller_text", optional=True),
        *numbers("opened_ns", "answer_due_ns"),
        *texts("reason", "loser", optional=True),
        *numbers("amount_nano", "buyer_prompt_tokens", "seller_prompt_tokens", optional=True),
        text("receipts", optional=True),
    )
    op.create_index("marketplace_dispute_status", "marketplace_dispute", ["status", "answer_due_ns"])
    op.create_index("marketplace_dispute_buyer", "marketplace_dispute", ["buyer_user_id", "opened_ns"])
    op.create_index("marketplace_dispute_seller", "marketplace_dispute", ["seller_user_id", "opened_ns"])
