"""Create promo lots, which are credits with an expiry, and accepted breaches of the books' rules.

An index finds what console sessions used by their user.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "promo_lot",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("amount_nano", BIG, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_ns", BIG, nullable=False),
        sa.Column("expires_ns", BIG, nullable=False),
        sa.CheckConstraint("amount_nano > 0", name="promo_lot_amount"),
        sa.CheckConstraint("scope IN ('cloud', 'market', 'all')", name="promo_lot_scope"),
        sqlite_strict=True,
    )
    op.create_index("promo_lot_user", "promo_lot", ["user_id", "expires_ns"])
    op.create_index("promo_lot_expires", "promo_lot", ["expires_ns"])
    # Requests of console sessions have no key, so the index by keys has those of all people under one value.
    sessions = sa.text("key_id = ''")
    op.create_index(
        "usage_session", "usage", ["user_id", "started_ns"], sqlite_where=sessions, postgresql_where=sessions
    )
    op.create_table(
        "accepted_breach",
        sa.Column("rule", sa.Text, primary_key=True),
        sa.Column("place", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("accepted_ns", BIG, nullable=False),
        sqlite_strict=True,
    )
    _append_only("promo_lot", "id = NEW.id")
    _append_only("accepted_breach", "rule = NEW.rule AND place = NEW.place")


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")


def _append_only(table: str, is_there: str) -> None:
    """Protect lots and accepted breaches from changes: the end of a lot is part of its grant."""
    if op.get_bind().dialect.name == "sqlite":
        statements = sqlite_triggers(table, is_there)
    else:
        statements = (
            f"CREATE TRIGGER {table}_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()",
        )
    for statement in statements:
        op.execute(statement)


def sqlite_triggers(table: str, is_there: str) -> tuple[str, ...]:
    # INSERT OR REPLACE deletes a conflicting row without running the delete trigger; see migration 0001.
    append = f"""
    CREATE TRIGGER {table}_append BEFORE INSERT ON {table} BEGIN
      SELECT RAISE(ABORT, 'rows of {table} are not replaced') WHERE EXISTS (SELECT 1 FROM {table} WHERE {is_there});
    END
    """
    refusals = (
        f"""
        CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} BEGIN
          SELECT RAISE(ABORT, 'the books are append-only');
        END
        """
        for action in ("UPDATE", "DELETE")
    )
    return (append, *refusals)
