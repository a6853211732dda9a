"""Triggers on PostgreSQL: the ledger and the audit log are append-only, and balances change by transfers only.

The functions look names up in their own schema, regardless of the caller's search path and of temporary tables
with the same names.
"""

import sqlalchemy as sa
from alembic import op

from migrations.first_schema.usage_sums import POSTGRESQL_TRIGGERS as USAGE_SUMMED


def create() -> None:
    connection = op.get_bind()
    schema = connection.scalar(sa.text("SELECT quote_ident(current_schema())"))
    for statement in (*_REFUSALS, *_ACCOUNTS, *_EVENTS, *_TRANSFERS, *_PROOFS, *USAGE_SUMMED, *_AUDIT):
        op.execute(statement.replace("<schema>", schema))
    if connection.scalar(sa.text("SELECT current_setting('server_version_num')::int")) >= 180000:
        # The trigger `transfer_apply` checks all their conditions. Each of them would run once per transfer.
        for column in ("event_seq", "debit", "credit", "pending_seq"):
            op.execute(f"ALTER TABLE transfer ALTER CONSTRAINT transfer_{column}_fkey NOT ENFORCED")


_REFUSALS = (
    """
    CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp AS $$
    BEGIN
      RAISE EXCEPTION 'the ledger is append-only' USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    *(
        f"""
        CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
          FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()
        """
        for table in ("event", "transfer", "usage", "block", "block_key")
    ),
    *(
        f"CREATE TRIGGER {table}_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}"
        " FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()"
        for table in ("credit_grant", "accepted_violation", "price", "price_version")
    ),
)

_ACCOUNTS = (
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
    CREATE TRIGGER account_open BEFORE INSERT ON account FOR EACH ROW
      WHEN (NEW.debits_posted <> 0 OR NEW.credits_posted <> 0 OR NEW.debits_pending <> 0
        OR NEW.credits_pending <> 0 OR NEW.applied_seq <> 0)
      EXECUTE FUNCTION ledger_refuse()
    """,
    "CREATE TRIGGER account_fixed BEFORE UPDATE ON account FOR EACH ROW EXECUTE FUNCTION ledger_fixed()",
    "CREATE TRIGGER account_kept BEFORE DELETE OR TRUNCATE ON account"
    " FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()",
)

_EVENTS = (
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
)

# The rules of a transfer, checked once for all transfers of a statement. An account that a hundred of them touch
# is updated once, because every update of a row in one transaction scans all its earlier versions. A transfer
# may use only what those with smaller numbers have left: `rest` is an account's available amount after each of
# them. Accounts are updated in the order of their ids, so that two writers cannot deadlock. Transfers are found
# only by their numbers, because plans are made while the tables are small and must still fit later. References
# are checked here as well, in one query for all. The database's own checks run once per transfer and are two
# fifths of its cost.
_TRANSFERS = (
    """
    CREATE FUNCTION ledger_apply() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, <schema>, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    DECLARE
      found RECORD;
    BEGIN
      WITH moved AS (
        SELECT added.seq,
          event.seq IS NULL OR debited.id IS NULL OR credited.id IS NULL OR debited.currency <> credited.currency
            OR added.phase IN ('post', 'void') AND (
              held.seq IS NULL OR held.seq >= added.seq OR held.phase <> 'pending'
              OR held.debit <> added.debit OR held.credit <> added.credit
              OR held.amount < added.amount) AS is_wrong,
          CASE WHEN added.phase IN ('single', 'post') THEN added.amount ELSE 0 END AS posted,
          CASE added.phase WHEN 'single' THEN 0 WHEN 'pending' THEN added.amount ELSE -held.amount END AS pending,
          added.debit, debited.normal AS debit_normal, debited.guarded AS debit_guarded,
          debited.applied_seq AS debit_applied_seq,
          debited.credits_posted - debited.debits_posted AS debit_owed,
          debited.debits_pending AS debit_out, debited.credits_pending AS debit_in,
          added.credit, credited.normal AS credit_normal, credited.guarded AS credit_guarded,
          credited.applied_seq AS credit_applied_seq,
          credited.credits_posted - credited.debits_posted AS credit_owed,
          credited.debits_pending AS credit_out, credited.credits_pending AS credit_in
        FROM added LEFT JOIN event ON event.seq = added.event_seq
          LEFT JOIN account AS debited ON debited.id = added.debit
          LEFT JOIN account AS credited ON credited.id = added.credit
          LEFT JOIN transfer AS held ON held.seq = added.pending_seq
      ), leg AS (
        SELECT seq, debit AS id, debit_guarded AS guarded,
          debit_applied_seq AS applied_seq, posted AS debited,
          0::bigint AS credited, pending AS debiting, 0::bigint AS crediting,
          CASE debit_normal WHEN 'C' THEN debit_owed - debit_out ELSE -debit_owed - debit_in END AS available,
          CASE debit_normal WHEN 'C' THEN -posted - pending ELSE posted END AS change
        FROM moved
        UNION ALL
        SELECT seq, credit, credit_guarded, credit_applied_seq, 0, posted, 0, pending,
          CASE credit_normal WHEN 'C' THEN credit_owed - credit_out ELSE -credit_owed - credit_in END,
          CASE credit_normal WHEN 'C' THEN posted ELSE -posted - pending END
        FROM moved
      ), step AS (
        SELECT *, available + sum(change) OVER (PARTITION BY id ORDER BY seq) AS rest FROM leg
      ), total AS (
        SELECT id, max(seq) AS seq, min(seq) <= min(applied_seq) AS is_old,
          sum(debited)::bigint AS debited, sum(credited)::bigint AS credited,
          sum(debiting)::bigint AS debiting, sum(crediting)::bigint AS crediting,
          coalesce(min(rest) FILTER (WHERE guarded) < 0, false) AS is_overdrawn
        FROM step GROUP BY id ORDER BY id
      ), changed AS (
        UPDATE account SET
          debits_posted = debits_posted + total.debited, credits_posted = credits_posted + total.credited,
          debits_pending = debits_pending + total.debiting, credits_pending = credits_pending + total.crediting,
          applied_seq = total.seq
        FROM total WHERE account.id = total.id
        RETURNING is_old, is_overdrawn
      )
      SELECT bool_or(is_old) AS is_old, bool_or(is_overdrawn) AS is_overdrawn,
        (SELECT bool_or(is_wrong) FROM moved) AS is_wrong
        INTO found FROM changed;
      IF found.is_wrong THEN
        RAISE EXCEPTION 'no such event, account or pending transfer, or two accounts of different currencies'
          USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      IF found.is_old THEN
        RAISE EXCEPTION 'balances change by transfers only' USING ERRCODE = 'integrity_constraint_violation';
      END IF;
      IF found.is_overdrawn THEN
        RAISE EXCEPTION 'no_overdraft'
          USING ERRCODE = 'check_violation', CONSTRAINT = 'no_overdraft', TABLE = 'account';
      END IF;
      RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER transfer_apply AFTER INSERT ON transfer REFERENCING NEW TABLE AS added
      FOR EACH STATEMENT EXECUTE FUNCTION ledger_apply()
    """,
)

_PROOFS = (
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
)

_AUDIT = (
    """
    CREATE FUNCTION audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'integrity_constraint_violation';
    END $$
    """,
    """
    CREATE TRIGGER audit_entry_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entry
      FOR EACH STATEMENT EXECUTE FUNCTION audit_refuse()
    """,
)
