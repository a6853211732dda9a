"""Create files and batches."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_file",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("expires_ns", sa.BigInteger, nullable=False),
    )
    op.create_index("stored_file_owner", "stored_file", ["owner", "created_ns"])
    op.create_index("stored_file_expires", "stored_file", ["expires_ns"])
    op.create_table(
        "batch",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("input_file_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("expires_ns", sa.BigInteger, nullable=False),
        sa.Column("annotations", sa.Text),
        sa.Column("output_lasts_s", sa.Integer),
        sa.Column("model", sa.Text),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("completed", sa.Integer, nullable=False),
        sa.Column("failed", sa.Integer, nullable=False),
        sa.Column("errors", sa.Text),
        sa.Column("in_progress_ns", sa.BigInteger),
        sa.Column("finalizing_ns", sa.BigInteger),
        sa.Column("completed_ns", sa.BigInteger),
        sa.Column("failed_ns", sa.BigInteger),
        sa.Column("expired_ns", sa.BigInteger),
        sa.Column("cancelling_ns", sa.BigInteger),
        sa.Column("cancelled_ns", sa.BigInteger),
    )
    op.create_index("batch_owner", "batch", ["owner", "created_ns"])
    op.create_index("batch_status", "batch", ["status", "place"])
    op.create_index("batch_input", "batch", ["input_file_id"])
