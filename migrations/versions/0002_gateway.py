"""Create the gateway's tables: API keys by keyed hash, and the outcome of every request."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_key",
        sa.Column("key_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("prefix", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("department", sa.Text, nullable=False),
        sa.Column("lanes", sa.Text, nullable=False),
        sa.Column("created_ns", sa.BigInteger, nullable=False),
        sa.Column("revoked_ns", sa.BigInteger, nullable=True),
    )
    op.create_table(
        "request_record",
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("started_ns", sa.BigInteger, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("backend", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("status", sa.BigInteger, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("ttft_ms", sa.BigInteger, nullable=True),
        sa.Column("duration_ms", sa.BigInteger, nullable=False),
        sa.Column("charge_nano", sa.BigInteger, nullable=False),
        sa.Column("event_seq", sa.BigInteger, nullable=True),
    )
    op.create_index("ix_request_record_started_ns", "request_record", ["started_ns"])
    op.create_index("ix_request_record_key_id", "request_record", ["key_id", "started_ns"])


def downgrade() -> None:
    op.drop_table("request_record")
    op.drop_table("api_key")
