"""Store which sellers have forfeited their earnings, and when an allocation was last drawn from."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("house_seller", sa.Column("forfeited_ns", BIG, nullable=True))
    op.add_column("house_allocation", sa.Column("drawn_ns", BIG, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("house_allocation", "drawn_ns")
    op.drop_column("house_seller", "forfeited_ns")
