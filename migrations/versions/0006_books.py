"""Let one event have the usage rows of many requests; keep only numbers in the request log."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXTS = ("user_id", "department", "key_id", "model", "lane", "provider")
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")
AMOUNTS = ("charge_nano", "cost_nano", "compute_nano")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_usage()
    else:
        _rekey_usage()
    # After a start, limits read usage by key or person. That must not read a whole month.
    op.create_index("usage_key", "usage", ["key_id", "started_ns"])
    op.create_index("usage_user", "usage", ["user_id", "started_ns"])
    # The text can be rebuilt from the decision's numbers, at no cost for requests that are never viewed.
    op.drop_column("request_record", "reason")


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")


def _rebuild_usage() -> None:
    """Replace the table, because SQLite cannot change a primary key. Its triggers go with it and are created again."""
    op.execute("ALTER TABLE usage RENAME TO usage_0001")
    op.execute("DROP INDEX usage_started")
    op.create_table(
        "usage",
        sa.Column("request_id", sa.Text, primary_key=True, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in TEXTS),
        *(sa.Column(name, BIG, nullable=False) for name in COUNTS),
        sa.Column("count_source", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("started_ns", BIG, nullable=False),
        sa.Column("duration_ms", BIG, nullable=False),
        sa.Column("ttft_ms", BIG),
        *(sa.Column(name, BIG, nullable=False) for name in AMOUNTS),
        sa.Column("event_seq", BIG, sa.ForeignKey("event.seq"), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("usage_started", "usage", ["started_ns"])
    columns = ", ".join(column["name"] for column in sa.inspect(op.get_bind()).get_columns("usage"))
    op.execute(f"INSERT INTO usage ({columns}) SELECT {columns} FROM usage_0001")  # noqa: S608  own names
    op.execute("DROP TABLE usage_0001")
    for statement in SQLITE_TRIGGERS:
        op.execute(statement)


def _rekey_usage() -> None:
    op.drop_constraint("usage_pkey", "usage", type_="primary")
    op.drop_constraint("usage_request", "usage", type_="unique")
    op.create_primary_key("usage_pkey", "usage", ["request_id"])


SQLITE_TRIGGERS = (
    # INSERT OR REPLACE deletes a conflicting row without running the delete trigger; see migration 0001.
    """
    CREATE TRIGGER usage_append BEFORE INSERT ON usage BEGIN
      SELECT RAISE(ABORT, 'usage rows are not replaced')
        WHERE EXISTS (SELECT 1 FROM usage WHERE request_id = NEW.request_id);
      SELECT RAISE(ABORT, 'a usage row belongs to an event')
        WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = NEW.event_seq);
    END
    """,
    *(
        f"""
        CREATE TRIGGER usage_no_{action.lower()} BEFORE {action} ON usage BEGIN
          SELECT RAISE(ABORT, 'the books are append-only');
        END
        """
        for action in ("UPDATE", "DELETE")
    ),
)
