"""Count tokens by kind; store versions of prices, and from when each of them is valid."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
RATES = ("prompt_nano", "cached_nano", "completion_nano")
MAYBE = (
    "reasoning_nano",
    "long_above_tokens",
    "long_prompt_nano",
    "long_cached_nano",
    "long_completion_nano",
    "compute_nano",
)


def upgrade() -> None:
    for name in ("reasoning_tokens", "tool_tokens"):
        op.add_column("usage", sa.Column(name, BIG, nullable=False, server_default="0"))
    op.add_column("usage", sa.Column("price_id", sa.Text, nullable=True))
    op.create_table(
        "price",
        sa.Column("id", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("lane", "model", "provider")),
        *(sa.Column(name, BIG, nullable=False) for name in RATES),
        *(sa.Column(name, BIG, nullable=True) for name in MAYBE),
        sqlite_strict=True,
    )
    op.create_table(
        "price_version",
        sa.Column("lane", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("from_ns", BIG, primary_key=True),
        sa.Column("price_id", sa.Text, sa.ForeignKey("price.id"), nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sqlite_strict=True,
    )
    _append_only()


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")


def _append_only() -> None:
    """Protect prices from changes: a changed price could make any charge look right."""
    if op.get_bind().dialect.name == "sqlite":
        statements = SQLITE_TRIGGERS
    else:
        statements = tuple(
            f"CREATE TRIGGER {table}_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()"
            for table in ("price", "price_version")
        )
    for statement in statements:
        op.execute(statement)


SQLITE_TRIGGERS = (
    # INSERT OR REPLACE deletes a conflicting row without running the delete trigger; see migration 0001.
    """
    CREATE TRIGGER price_append BEFORE INSERT ON price BEGIN
      SELECT RAISE(ABORT, 'prices are not replaced') WHERE EXISTS (SELECT 1 FROM price WHERE id = NEW.id);
    END
    """,
    """
    CREATE TRIGGER price_version_append BEFORE INSERT ON price_version BEGIN
      SELECT RAISE(ABORT, 'prices are not replaced') WHERE EXISTS (
        SELECT 1 FROM price_version WHERE lane = NEW.lane AND name = NEW.name AND from_ns = NEW.from_ns);
      SELECT RAISE(ABORT, 'a version is one of a price')
        WHERE NOT EXISTS (SELECT 1 FROM price WHERE id = NEW.price_id);
    END
    """,
    *(
        f"""
        CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} BEGIN
          SELECT RAISE(ABORT, 'prices that were charged are kept');
        END
        """
        for table in ("price", "price_version")
        for action in ("UPDATE", "DELETE")
    ),
)
