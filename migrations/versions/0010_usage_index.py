"""People's usage is found by their keys: an index of its own cost as much as half the row."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("usage_user", "usage")


def downgrade() -> None:
    raise NotImplementedError("books are not taken down; the way back is the backup taken before")
