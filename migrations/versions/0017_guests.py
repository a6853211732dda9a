"""Create keys of guests: market jobs that this gateway answers while its owner does not need it."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("is_guest", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("api_key", "is_guest")
