"""Store which gateway writes shared books. On PostgreSQL, apply all transfers of a statement at once."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_seat()
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        schema = connection.scalar(sa.text("SELECT quote_ident(current_schema())"))
        for statement in POSTGRESQL_TRIGGERS:
            op.execute(statement.replace("<schema>", schema))
        if connection.scalar(sa.text("SELECT current_setting('server_version_num')::int")) >= 180000:
            # The trigger above checks all their conditions. Each of them would run once per transfer.
            for column in ("event_seq", "debit", "credit", "pending_seq"):
                op.execute(f"ALTER TABLE transfer ALTER CONSTRAINT transfer_{column}_fkey NOT ENFORCED")


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")


def _create_seat() -> None:
    leader = op.create_table(
        "ledger_leader",
        sa.Column("id", BIG, primary_key=True, autoincrement=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("expires_ns", BIG, nullable=False),
        sa.CheckConstraint("id = 1", name="ledger_leader_one"),
    )
    op.create_table(
        "ledger_gateway",
        sa.Column("fingerprint", sa.Text, primary_key=True),
        sa.Column("certificate", sa.Text, nullable=False),
        sa.Column("expires_ns", BIG, nullable=False),
    )
    # The empty seat exists from the beginning. From then on it only changes its holder.
    nobody = {"id": 1, "epoch": 0, "holder": "", "address": "", "fingerprint": "", "expires_ns": 0}
    op.bulk_insert(leader, [nobody])


# The rules of migration 0001, checked once for all transfers of a statement. An account that a hundred of them touch
# is updated once, because every update of a row in one transaction scans all its earlier versions. The same transfers
# are accepted as before. A transfer may use only what those with smaller numbers have left: `least` is an account's
# lowest available amount on the way. Accounts are updated in the order of their ids, so that two writers cannot
# deadlock. Transfers are found only by their numbers, because plans are made while the tables are small and must
# still fit later. References are checked here as well, in one query for all. The database's own checks run once per
# transfer and are two fifths of its cost.
POSTGRESQL_TRIGGERS = (
    "DROP TRIGGER transfer_apply ON transfer",
    "DROP FUNCTION ledger_apply()",
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
            OR added.phase IN ('post', 'void') AND (held.seq IS NULL OR held.seq >= added.seq OR held.phase <> 'pending'
              OR held.debit <> added.debit OR held.credit <> added.credit OR held.amount < added.amount) AS is_wrong,
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
        RAISE EXCEPTION 'no_overdraft' USING ERRCODE = 'check_violation', CONSTRAINT = 'no_overdraft', TABLE = 'account';
      END IF;
      RETURN NULL;
    END $$
    """,
    """
    CREATE TRIGGER transfer_apply AFTER INSERT ON transfer REFERENCING NEW TABLE AS added
      FOR EACH STATEMENT EXECUTE FUNCTION ledger_apply()
    """,
)
