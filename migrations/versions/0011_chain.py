"""Proofs: blocks of events, chained by their hashes and signed."""

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("books are not taken down; the way back is the backup taken before")
