"""The model that answered, where that is not the one asked for. Rows from before do not say."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("usage", "request_record"):
        op.add_column(table, sa.Column("served_model", sa.Text, nullable=True))


def downgrade() -> None:
    raise NotImplementedError("books are not taken down; the way back is the backup taken before")
