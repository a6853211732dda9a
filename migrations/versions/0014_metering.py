"""Tokens apart by what they were for; versions of prices."""

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("books are not taken down; the way back is the backup taken before")
