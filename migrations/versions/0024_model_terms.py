"""Store operators' aliases of the pool's models and prices of providers' models."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_alias",
        sa.Column("alias", sa.Text, primary_key=True),
        sa.Column("models", sa.Text, nullable=False),
        sa.Column("since_ns", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
    )
    op.create_table(
        "model_price",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("prompt_nano", sa.BigInteger, nullable=False),
        sa.Column("completion_nano", sa.BigInteger, nullable=False),
        sa.Column("since_ns", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("model_price")
    op.drop_table("model_alias")
