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
        "house_seller",
        text("user_id", key=True),
        *numbers("registered_ns", "matured_seq"),
        text("barred_why", optional=True),
        number("forfeited_ns", optional=True),
    )
    op.create_table("house_identity", text("identity", key=True), text("user_id"), number("registered_ns"))
    op.create_index("house_identity_user", "house_identity", ["user_id"])
    op.create_table("house_statement", text("digest", key=True), *texts("issuer", "kind", "raw"))
    op.create_index("house_statement_issuer", "house_statement", ["issuer"])


def _create_allocations() -> None:
    op.create_table(
        "house_allocation",
        text("id", key=True),
        *texts("digest", "raw", "buyer_user", "seller_user"),
        number("limit_nano"),
        integer("fee_bps"),
        *numbers("created_ns", "expires_ns", "version"),
        *texts("evidence", "seen", "decided"),
        *numbers("jobs", "turns", "drawn_nano"),
        number("look_ns", optional=True),
        number("drawn_ns", default="0"),
        sa.UniqueConstraint("digest", name="house_allocation_digest"),
    )
    op.create_index("house_allocation_buyer", "house_allocation", ["buyer_user", "expires_ns"])
    op.create_index("house_allocation_seller", "house_allocation", ["seller_user", "expires_ns"])
    op.create_index("house_allocation_look", "house_allocation", ["look_ns"])


def _create_earnings() -> None:
    op.create_table(
        "house_maturity",
        text("seller_user", key=True),
        text("label", key=True),
        number("amount_nano"),
        integer("reserve_bps"),
        *numbers("first_seq", "last_seq"),
        text("status"),
        number("made_ns"),
    )
    op.create_index("house_maturity_status", "house_maturity", ["status", "made_ns"])
    op.create_table(
        "house_withheld",
        number_key("transfer_seq"),
        *texts("seller_user", "buyer_user", "charge_id"),
        number("amount_nano"),
    )
    op.create_index("house_withheld_seller", "house_withheld", ["seller_user"])


def _create_disputes() -> None:
    op.create_table(
        "house_dispute",
        text("id", key=True),
        text("allocation"),
        integer("lane"),
        number("seq"),
        *texts("buyer_user", "seller_user", "opener", "tokenizer"),
        number("fee_nano"),
        text("status"),
        *texts("buyer_text", "seller_text", optional=True),
        *numbers("opened_ns", "answer_by_ns"),
        *texts("reason", "loser", optional=True),
        *numbers("amount_nano", "buyer_prompt_tokens", "seller_prompt_tokens", optional=True),
        text("receipts", optional=True),
    )
    op.create_index("house_dispute_status", "house_dispute", ["status", "answer_by_ns"])
    op.create_index("house_dispute_buyer", "house_dispute", ["buyer_user", "opened_ns"])
    op.create_index("house_dispute_seller", "house_dispute", ["seller_user", "opened_ns"])
