"""Promo lots: credits that were given and end one day."""

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("books are not taken down; the way back is the backup taken before")
