"""Store requests to /accounting/v1 by their key, with their answers, and the periodic jobs of payments."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "asked",
        sa.Column("key_digest", sa.LargeBinary, primary_key=True),
        sa.Column("request_hash", sa.LargeBinary, nullable=False),
        sa.Column("claim", sa.Text, nullable=False),
        sa.Column("until_ns", BIG, nullable=False),
        sa.Column("created_ns", BIG, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("answer", sa.LargeBinary),
    )
    op.create_index("asked_created", "asked", ["created_ns"])
    op.create_table(
        "payment_chore",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("until_ns", BIG, nullable=False),
        sa.Column("done_ns", BIG, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_index("payer_frozen", "payer", ["frozen_why"])
    op.add_column("payer", sa.Column("auto_day_max", sa.Integer, nullable=False, server_default="4"))
    op.add_column("payer", sa.Column("auto_paused_until_ns", BIG, nullable=False, server_default="0"))
    op.add_column("payer", sa.Column("moving_until_ns", BIG, nullable=False, server_default="0"))
    op.create_index("payment_dispute_status", "payment_dispute", ["status"])
    op.create_index("payer_auto", "payer", ["auto_below_nano"])
    op.create_index("topup_refund_user", "topup_refund", ["user_id", "created_ns"])


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")
