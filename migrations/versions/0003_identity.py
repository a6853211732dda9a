"""Organizations, people, roles, sessions of the console, and the audit log of every admin action."""

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing yet."""
