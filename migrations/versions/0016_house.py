"""Create the market's house: sellers, allocations, and what is known of each channel."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "house_seller",
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("registered_ns", BIG, nullable=False),
        sa.Column("matured_seq", BIG, nullable=False),
        sa.Column("barred_why", sa.Text),
    )
    op.create_table(
        "house_identity",
        sa.Column("identity", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("registered_ns", BIG, nullable=False),
    )
    op.create_index("house_identity_user", "house_identity", ["user_id"])
    op.create_table(
        "house_statement",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("raw", sa.Text, nullable=False),
    )
    op.create_index("house_statement_issuer", "house_statement", ["issuer"])
    op.create_table(
        "house_allocation",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("raw", sa.Text, nullable=False),
        sa.Column("buyer_user", sa.Text, nullable=False),
        sa.Column("seller_user", sa.Text, nullable=False),
        sa.Column("limit_nano", BIG, nullable=False),
        sa.Column("fee_bps", sa.Integer, nullable=False),
        sa.Column("created_ns", BIG, nullable=False),
        sa.Column("expires_ns", BIG, nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("seen", sa.Text, nullable=False),
        sa.Column("decided", sa.Text, nullable=False),
        sa.Column("jobs", BIG, nullable=False),
        sa.Column("turns", BIG, nullable=False),
        sa.Column("drawn_nano", BIG, nullable=False),
        sa.Column("look_ns", BIG),
        sa.UniqueConstraint("digest", name="house_allocation_digest"),
    )
    op.create_index("house_allocation_buyer", "house_allocation", ["buyer_user", "expires_ns"])
    op.create_index("house_allocation_seller", "house_allocation", ["seller_user", "expires_ns"])
    op.create_index("house_allocation_look", "house_allocation", ["look_ns"])
    op.create_table(
        "house_maturity",
        sa.Column("seller_user", sa.Text, primary_key=True),
        sa.Column("label", sa.Text, primary_key=True),
        sa.Column("amount_nano", BIG, nullable=False),
        sa.Column("reserve_bps", sa.Integer, nullable=False),
        sa.Column("first_seq", BIG, nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("made_ns", BIG, nullable=False),
    )
    op.create_index("house_maturity_status", "house_maturity", ["status", "made_ns"])
    op.create_table(
        "house_withheld",
        sa.Column("transfer_seq", BIG, primary_key=True, autoincrement=False),
        sa.Column("seller_user", sa.Text, nullable=False),
        sa.Column("buyer_user", sa.Text, nullable=False),
        sa.Column("charge_id", sa.Text, nullable=False),
        sa.Column("amount_nano", BIG, nullable=False),
    )
    op.create_index("house_withheld_seller", "house_withheld", ["seller_user"])
    op.create_table(
        "house_dispute",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("allocation", sa.Text, nullable=False),
        sa.Column("lane", sa.Integer, nullable=False),
        sa.Column("seq", BIG, nullable=False),
        sa.Column("buyer_user", sa.Text, nullable=False),
        sa.Column("seller_user", sa.Text, nullable=False),
        sa.Column("opener", sa.Text, nullable=False),
        sa.Column("tokenizer", sa.Text, nullable=False),
        sa.Column("fee_nano", BIG, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("buyer_text", sa.Text),
        sa.Column("seller_text", sa.Text),
        sa.Column("opened_ns", BIG, nullable=False),
        sa.Column("answer_by_ns", BIG, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("loser", sa.Text),
        sa.Column("amount_nano", BIG),
    )
    op.create_index("house_dispute_status", "house_dispute", ["status", "answer_by_ns"])
    op.create_index("house_dispute_buyer", "house_dispute", ["buyer_user", "opened_ns"])
    op.create_index("house_dispute_seller", "house_dispute", ["seller_user", "opened_ns"])


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")
