"""Create passwords, the one-time links to set them, and the origin of each console session."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "person_password",
        sa.Column("user_id", sa.Text, sa.ForeignKey("person.user_id"), primary_key=True),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("changed_ns", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "password_link",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, sa.ForeignKey("person.user_id"), nullable=False),
        sa.Column("is_first", sa.Integer, nullable=False),
        sa.Column("expires_ns", sa.BigInteger, nullable=False),
    )
    op.add_column("console_session", sa.Column("address", sa.Text, nullable=False, server_default=""))
    op.add_column("console_session", sa.Column("browser", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("console_session", "browser")
    op.drop_column("console_session", "address")
    op.drop_table("password_link")
    op.drop_table("person_password")
