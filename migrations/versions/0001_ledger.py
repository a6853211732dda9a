"""Create the books: accounts, events, transfers, usage, and the triggers that protect them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_account()
    _create_event()
    _create_transfer()
    _create_usage()
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


def _create_account() -> None:
    op.create_table(
        "account",
        sa.Column("id", BIG, primary_key=True, autoincrement=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("currency", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("normal", sa.Text, nullable=False),
        sa.Column("guarded", FLAG, nullable=False),
        sa.Column("debits_posted", BIG, nullable=False),
        sa.Column("credits_posted", BIG, nullable=False),
        sa.Column("debits_pending", BIG, nullable=False),
        sa.Column("credits_pending", BIG, nullable=False),
        sa.Column("applied_seq", BIG, nullable=False),
        sa.UniqueConstraint("code", name="account_code"),
        sa.CheckConstraint("kind IN ('asset', 'liability', 'income', 'expense', 'equity')", name="account_kind"),
        sa.CheckConstraint(
            "normal = CASE WHEN kind IN ('asset', 'expense') THEN 'D' ELSE 'C' END", name="account_normal"
        ),
        sa.CheckConstraint(
            "debits_posted >= 0 AND credits_posted >= 0 AND debits_pending >= 0 AND credits_pending >= 0",
            name="account_totals",
        ),
        sa.CheckConstraint(
            "NOT guarded OR (normal = 'C' AND credits_posted - debits_posted - debits_pending >= 0)"
            " OR (normal = 'D' AND debits_posted - credits_posted - credits_pending >= 0)",
            name="no_overdraft",
        ),
        sqlite_strict=True,
        postgresql_with={"fillfactor": 50},
    )


def _create_event() -> None:
    op.create_table(
        "event",
        sa.Column("seq", BIG, primary_key=True, autoincrement=False),
        sa.Column("idem_key", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("req_hash", sa.LargeBinary, nullable=False),
        sa.Column("ref", sa.Text, nullable=False),
        sa.Column("created_ns", BIG, nullable=False),
        sa.Column("meta", sa.Text, nullable=False),
        sa.UniqueConstraint("idem_key", name="event_idem_key"),
        sqlite_strict=True,
    )


def _create_transfer() -> None:
    op.create_table(
        "transfer",
        sa.Column("seq", BIG, primary_key=True, autoincrement=False),
        sa.Column("event_seq", BIG, sa.ForeignKey("event.seq"), nullable=False),
        sa.Column("leg", sa.Integer, nullable=False),
        sa.Column("debit", BIG, sa.ForeignKey("account.id"), nullable=False),
        sa.Column("credit", BIG, sa.ForeignKey("account.id"), nullable=False),
        sa.Column("amount", BIG, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("pending_seq", BIG, sa.ForeignKey("transfer.seq")),
        sa.Column("expires_ns", BIG),
        sa.UniqueConstraint("event_seq", "leg", name="transfer_event_leg"),
        sa.CheckConstraint("debit <> credit", name="transfer_sides"),
        sa.CheckConstraint("phase IN ('single', 'pending', 'post', 'void')", name="transfer_phase"),
        sa.CheckConstraint("(phase IN ('post', 'void')) = (pending_seq IS NOT NULL)", name="transfer_resolves"),
        sa.CheckConstraint("(phase = 'pending') = (expires_ns IS NOT NULL)", name="transfer_expires"),
        sa.CheckConstraint(
            "amount >= CASE WHEN phase IN ('post', 'void') THEN 0 ELSE 1 END AND amount <= 1000000000000000",
            name="transfer_amount",
        ),
        sqlite_strict=True,
    )
    op.create_index("transfer_debit", "transfer", ["debit", "seq"])
    op.create_index("transfer_credit", "transfer", ["credit", "seq"])
    for name, column, condition, unique in (
        ("one_resolution", "pending_seq", "pending_seq IS NOT NULL", True),
        ("transfer_expiry", "expires_ns", "phase = 'pending'", False),
    ):
        where = sa.text(condition)
        op.create_index(name, "transfer", [column], unique=unique, sqlite_where=where, postgresql_where=where)


def _create_usage() -> None:
    op.create_table(
        "usage",
        sa.Column("event_seq", BIG, sa.ForeignKey("event.seq"), primary_key=True, autoincrement=False),
        sa.Column("request_id", sa.Text, nullable=False),
        *(
            sa.Column(name, sa.Text, nullable=False)
            for name in ("user_id", "department", "key_id", "model", "lane", "provider")
        ),
        *(
            sa.Column(name, BIG, nullable=False)
            for name in ("prompt_tokens", "cached_tokens", "completion_tokens")
        ),
        sa.Column("count_source", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("started_ns", BIG, nullable=False),
        sa.Column("duration_ms", BIG, nullable=False),
        sa.Column("ttft_ms", BIG),
        *(sa.Column(name, BIG, nullable=False) for name in ("charge_nano", "cost_nano", "compute_nano")),
        sa.UniqueConstraint("request_id", name="usage_request"),
        sqlite_strict=True,
    )
    op.create_index("usage_started", "usage", ["started_ns"])


# SQLite. INSERT OR REPLACE deletes a conflicting row without running the delete triggers, so the insert triggers
# look for such a row first. INSERT OR IGNORE and OR FAIL also weaken constraints that fail inside triggers, and a
# pragma can turn references or checks off altogether. RAISE(ABORT) obeys none of them. So transfer_check repeats
# every condition of the constraints, and transfer_apply checks that it changed what it should. An account may change
# only together with a transfer that touches it and is newer than the last one applied. The apply trigger stores every
# transfer's number, so no number is left for a forgery.
SQLITE_TRIGGERS = (
    """
    CREATE TRIGGER account_open BEFORE INSERT ON account BEGIN
      SELECT RAISE(ABORT, 'an account is opened empty')
        WHERE NEW.debits_posted OR NEW.credits_posted OR NEW.debits_pending OR NEW.credits_pending OR NEW.applied_seq;
      SELECT RAISE(ABORT, 'accounts are not replaced')
        WHERE EXISTS (SELECT 1 FROM account WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM account WHERE code = NEW.code);
    END
    """,
    """
    CREATE TRIGGER account_fixed BEFORE UPDATE ON account BEGIN
      SELECT RAISE(ABORT, 'what an account is does not change')
        WHERE NEW.id <> OLD.id OR NEW.code <> OLD.code OR NEW.currency <> OLD.currency
          OR NEW.kind <> OLD.kind OR NEW.normal <> OLD.normal OR NEW.guarded <> OLD.guarded;
      SELECT RAISE(ABORT, 'balances change by transfers only')
        WHERE NEW.applied_seq <= OLD.applied_seq OR NOT EXISTS (
          SELECT 1 FROM transfer WHERE seq = NEW.applied_seq AND NEW.id IN (debit, credit));
    END
    """,
    """
    CREATE TRIGGER transfer_check BEFORE INSERT ON transfer BEGIN
      SELECT RAISE(ABORT, 'transfers are not replaced')
        WHERE EXISTS (SELECT 1 FROM transfer WHERE seq = NEW.seq)
          OR EXISTS (SELECT 1 FROM transfer WHERE event_seq = NEW.event_seq AND leg = NEW.leg)
          OR EXISTS (SELECT 1 FROM transfer WHERE pending_seq = NEW.pending_seq);
      SELECT RAISE(ABORT, 'a transfer belongs to an event and has two accounts')
        WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = NEW.event_seq)
          OR (SELECT COUNT(*) FROM account WHERE id IN (NEW.debit, NEW.credit)) <> 2;
      SELECT RAISE(ABORT, 'a transfer with these fields cannot be')
        WHERE NEW.phase NOT IN ('single', 'pending', 'post', 'void')
          OR (NEW.phase IN ('post', 'void')) <> (NEW.pending_seq IS NOT NULL)
          OR (NEW.phase = 'pending') <> (NEW.expires_ns IS NOT NULL)
          OR NEW.amount < CASE WHEN NEW.phase IN ('post', 'void') THEN 0 ELSE 1 END
          OR NEW.amount > 1000000000000000;
      SELECT RAISE(ABORT, 'the two accounts have different currencies')
        WHERE (SELECT currency FROM account WHERE id = NEW.debit)
           <> (SELECT currency FROM account WHERE id = NEW.credit);
      SELECT RAISE(ABORT, 'no such pending transfer')
        WHERE NEW.phase IN ('post', 'void') AND NOT EXISTS (
          SELECT 1 FROM transfer AS held
          WHERE held.seq = NEW.pending_seq AND held.phase = 'pending'
            AND held.debit = NEW.debit AND held.credit = NEW.credit AND held.amount >= NEW.amount);
      SELECT RAISE(ABORT, 'no_overdraft')
        FROM (SELECT COALESCE((SELECT amount FROM transfer WHERE seq = NEW.pending_seq), 0) AS released), account
        WHERE id IN (NEW.debit, NEW.credit) AND guarded AND CASE NEW.phase WHEN 'void' THEN 0 ELSE NEW.amount END - released >
          CASE
            WHEN id = NEW.debit AND normal = 'C' THEN credits_posted - debits_posted - debits_pending
            WHEN id = NEW.credit AND normal = 'D' THEN debits_posted - credits_posted - credits_pending
          END;
      SELECT RAISE(ABORT, 'no more fits into the account')
        FROM account WHERE id IN (NEW.debit, NEW.credit)
          AND MAX(debits_posted, credits_posted, debits_pending, credits_pending) > 4000000000000000000;
    END
    """,
    """
    CREATE TRIGGER transfer_apply AFTER INSERT ON transfer BEGIN
      UPDATE account SET
        debits_posted = debits_posted + CASE WHEN NEW.phase IN ('single', 'post') THEN NEW.amount ELSE 0 END,
        debits_pending = debits_pending + CASE NEW.phase WHEN 'single' THEN 0 WHEN 'pending' THEN NEW.amount
          ELSE -(SELECT amount FROM transfer WHERE seq = NEW.pending_seq) END,
        applied_seq = NEW.seq
        WHERE id = NEW.debit;
      UPDATE account SET
        credits_posted = credits_posted + CASE WHEN NEW.phase IN ('single', 'post') THEN NEW.amount ELSE 0 END,
        credits_pending = credits_pending + CASE NEW.phase WHEN 'single' THEN 0 WHEN 'pending' THEN NEW.amount
          ELSE -(SELECT amount FROM transfer WHERE seq = NEW.pending_seq) END,
        applied_seq = NEW.seq
        WHERE id = NEW.credit;
      SELECT RAISE(ABORT, 'a transfer moves both its accounts')
        WHERE (SELECT COUNT(*) FROM account WHERE id IN (NEW.debit, NEW.credit) AND applied_seq = NEW.seq) <> 2;
    END
    """,
    """
    CREATE TRIGGER event_append BEFORE INSERT ON event BEGIN
      SELECT RAISE(ABORT, 'only what was reaped is captured late')
        WHERE NEW.kind = 'late' AND NOT EXISTS (SELECT 1 FROM event WHERE idem_key = 'reap:' || NEW.ref);
      SELECT RAISE(ABORT, 'events are not replaced')
        WHERE EXISTS (SELECT 1 FROM event WHERE seq = NEW.seq)
          OR EXISTS (SELECT 1 FROM event WHERE idem_key = NEW.idem_key);
    END
    """,
    """
    CREATE TRIGGER usage_append BEFORE INSERT ON usage BEGIN
      SELECT RAISE(ABORT, 'usage rows are not replaced')
        WHERE EXISTS (SELECT 1 FROM usage WHERE event_seq = NEW.event_seq)
          OR EXISTS (SELECT 1 FROM usage WHERE request_id = NEW.request_id);
      SELECT RAISE(ABORT, 'a usage row belongs to an event')
        WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = NEW.event_seq);
    END
    """,
    *(
        f"""
        CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} BEGIN
          SELECT RAISE(ABORT, 'the books are append-only');
        END
        """
        for table, actions in (
            ("account", ("DELETE",)),
            ("event", ("UPDATE", "DELETE")),
            ("transfer", ("UPDATE", "DELETE")),
            ("usage", ("UPDATE", "DELETE")),
        )
        for action in actions
    ),
)

# PostgreSQL. The same rules. The functions look names up in their own schema, regardless of the caller's search
# path and of temporary tables with the same names. Accounts are locked in the order of their ids, so that two writers
# cannot deadlock.
POSTGRESQL_TRIGGERS = (
    """
    CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp AS $$
    BEGIN
      RAISE EXCEPTION 'the books are append-only' USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    """
    CREATE FUNCTION ledger_late() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp AS $$
    BEGIN
      IF NOT EXISTS (SELECT 1 FROM event WHERE idem_key = 'reap:' || NEW.ref) THEN
        RAISE EXCEPTION 'only what was reaped is captured late' USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER event_late BEFORE INSERT ON event FOR EACH ROW
      WHEN (NEW.kind = 'late') EXECUTE FUNCTION ledger_late()
    """,
    """
    CREATE FUNCTION ledger_fixed() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp AS $$
    BEGIN
      IF (NEW.id, NEW.code, NEW.currency, NEW.kind, NEW.normal, NEW.guarded)
        IS DISTINCT FROM (OLD.id, OLD.code, OLD.currency, OLD.kind, OLD.normal, OLD.guarded) THEN
        RAISE EXCEPTION 'what an account is does not change' USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      IF NEW.applied_seq <= OLD.applied_seq OR NOT EXISTS (
        SELECT 1 FROM transfer WHERE seq = NEW.applied_seq AND NEW.id IN (debit, credit)) THEN
        RAISE EXCEPTION 'balances change by transfers only' USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      RETURN NEW;
    END $$
    """,
    """
    CREATE FUNCTION ledger_apply() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp AS $$
    DECLARE
      posted BIGINT := 0;
      pending BIGINT := 0;
    BEGIN
      IF (SELECT currency FROM account WHERE id = NEW.debit) <> (SELECT currency FROM account WHERE id = NEW.credit) THEN
        RAISE EXCEPTION 'the two accounts have different currencies' USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      IF NEW.phase IN ('post', 'void') THEN
        SELECT -held.amount INTO pending FROM transfer AS held
          WHERE held.seq = NEW.pending_seq AND held.phase = 'pending'
            AND held.debit = NEW.debit AND held.credit = NEW.credit AND held.amount >= NEW.amount;
        IF NOT FOUND THEN
          RAISE EXCEPTION 'no such pending transfer' USING ERRCODE = 'integrity_constraint_violation';
        END IF;
      ELSIF NEW.phase = 'pending' THEN
        pending := NEW.amount;
      END IF;
      IF NEW.phase IN ('single', 'post') THEN
        posted := NEW.amount;
      END IF;
      IF NEW.debit < NEW.credit THEN
        UPDATE account SET debits_posted = debits_posted + posted, debits_pending = debits_pending + pending,
          applied_seq = NEW.seq WHERE id = NEW.debit;
      END IF;
      UPDATE account SET credits_posted = credits_posted + posted, credits_pending = credits_pending + pending,
        applied_seq = NEW.seq WHERE id = NEW.credit;
      IF NEW.debit > NEW.credit THEN
        UPDATE account SET debits_posted = debits_posted + posted, debits_pending = debits_pending + pending,
          applied_seq = NEW.seq WHERE id = NEW.debit;
      END IF;
      RETURN NULL;
    END $$
    """,
    "CREATE TRIGGER transfer_apply AFTER INSERT ON transfer FOR EACH ROW EXECUTE FUNCTION ledger_apply()",
    """
    CREATE TRIGGER account_open BEFORE INSERT ON account FOR EACH ROW
      WHEN (NEW.debits_posted <> 0 OR NEW.credits_posted <> 0 OR NEW.debits_pending <> 0
        OR NEW.credits_pending <> 0 OR NEW.applied_seq <> 0)
      EXECUTE FUNCTION ledger_refuse()
    """,
    "CREATE TRIGGER account_fixed BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION ledger_fixed()",
    "CREATE TRIGGER account_kept BEFORE DELETE OR TRUNCATE ON account FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()",
    *(
        f"""
        CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
          FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()
        """
        for table in ("event", "transfer", "usage")
    ),
)
