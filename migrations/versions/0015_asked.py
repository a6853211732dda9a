"""What was asked of the books under a key, and the answer that was given."""

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    raise NotImplementedError("books are not taken down; the way back is the backup taken before")
