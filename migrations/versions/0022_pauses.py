"""Store what an operator has paused: buying on a lane, or selling."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pause",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("since_ns", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("pause")
