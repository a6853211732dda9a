"""Limit automatic top-ups per month."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    # Existing automatic top-ups get the default limit of new ones: 500 USD.
    op.add_column("payer", sa.Column("auto_month_nano", BIG, nullable=False, server_default="500000000000"))


def downgrade() -> None:
    op.drop_column("payer", "auto_month_nano")
