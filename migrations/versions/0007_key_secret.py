"""Store which secret hashes the keys, so that a gateway with another one notices at its start."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "key_secret",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("key_secret")
