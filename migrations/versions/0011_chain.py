"""Create proofs: signed blocks of events, chained by their hashes."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_tables()
    # A block reads the usage rows of its events. They are written in that order, so the index grows at its end.
    op.create_index("usage_event", "usage", ["event_seq"])
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        statements = SQLITE_TRIGGERS
    else:
        schema = connection.scalar(sa.text("SELECT quote_ident(current_schema())"))
        statements = tuple(statement.replace("<schema>", schema) for statement in POSTGRESQL_TRIGGERS)
    for statement in statements:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")


def _create_tables() -> None:
    op.create_table(
        "block_key",
        sa.Column("fingerprint", sa.Text, primary_key=True, nullable=False),
        sa.Column("public_key", sa.LargeBinary, nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "block",
        sa.Column("n", BIG, primary_key=True, autoincrement=False),
        sa.Column("from_seq", BIG, nullable=False),
        sa.Column("to_seq", BIG, nullable=False),
        sa.Column("events", sa.Integer, nullable=False),
        sa.Column("prev", sa.LargeBinary, nullable=False),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        sa.Column("made_ns", BIG, nullable=False),
        sa.Column("signed_by", sa.Text, sa.ForeignKey("block_key.fingerprint"), nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("from_seq", name="block_from_seq"),
        sa.UniqueConstraint("to_seq", name="block_to_seq"),
        sa.CheckConstraint(
            "events = to_seq - from_seq + 1 AND events BETWEEN 1 AND 1000", name="block_events"
        ),
        sa.CheckConstraint(
            "length(prev) = 32 AND length(hash) = 32 AND length(signature) = 64", name="block_lengths"
        ),
        sqlite_strict=True,
    )


# As in migration 0001: INSERT OR REPLACE deletes without running the delete triggers, pragmas turn references and
# checks off, and RAISE(ABORT) obeys none of them.
SQLITE_TRIGGERS = (
    """
    CREATE TRIGGER block_append BEFORE INSERT ON block BEGIN
      SELECT RAISE(ABORT, 'a block follows the last one')
        WHERE NEW.n <> COALESCE((SELECT MAX(n) FROM block), 0) + 1
          OR NEW.from_seq <> COALESCE((SELECT to_seq FROM block WHERE n = NEW.n - 1), 0) + 1
          OR NEW.prev <> COALESCE((SELECT hash FROM block WHERE n = NEW.n - 1), zeroblob(32))
          OR NEW.to_seq < NEW.from_seq;
      SELECT RAISE(ABORT, 'a block is of events that are booked, and signed by a known key')
        WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = NEW.to_seq)
          OR NOT EXISTS (SELECT 1 FROM block_key WHERE fingerprint = NEW.signed_by);
    END
    """,
    """
    CREATE TRIGGER block_key_append BEFORE INSERT ON block_key BEGIN
      SELECT RAISE(ABORT, 'keys are not replaced')
        WHERE EXISTS (SELECT 1 FROM block_key WHERE fingerprint = NEW.fingerprint);
    END
    """,
    *(
        f"""
        CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} BEGIN
          SELECT RAISE(ABORT, 'the books are append-only');
        END
        """
        for table in ("block", "block_key")
        for action in ("UPDATE", "DELETE")
    ),
)

POSTGRESQL_TRIGGERS = (
    r"""
    CREATE FUNCTION ledger_block() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp AS $$
    BEGIN
      IF NEW.n <> COALESCE((SELECT MAX(n) FROM block), 0) + 1
        OR NEW.from_seq <> COALESCE((SELECT to_seq FROM block WHERE n = NEW.n - 1), 0) + 1
        OR NEW.prev <> COALESCE((SELECT hash FROM block WHERE n = NEW.n - 1), decode(repeat('00', 32), 'hex')) THEN
        RAISE EXCEPTION 'a block follows the last one' USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      IF NOT EXISTS (SELECT 1 FROM event WHERE seq = NEW.to_seq) THEN
        RAISE EXCEPTION 'a block is of events that are booked' USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      RETURN NEW;
    END $$
    """,
    "CREATE TRIGGER block_append BEFORE INSERT ON block FOR EACH ROW EXECUTE FUNCTION ledger_block()",
    *(
        f"""
        CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
          FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()
        """
        for table in ("block", "block_key")
    ),
)
