"""Triggers on SQLite: the ledger and the audit log are append-only, and balances change by transfers only.

INSERT OR REPLACE deletes a conflicting row without running the delete triggers, so the insert triggers look for
such a row first. INSERT OR IGNORE and OR FAIL also weaken constraints that fail inside triggers, and a pragma
can turn references or checks off altogether. RAISE(ABORT) obeys none of them. So transfer_check repeats every
condition of the constraints, and transfer_apply checks that it changed what it should. An account may change
only together with a transfer that touches it and is newer than the last one applied. The apply trigger stores
every transfer's number, so no number is left for a forgery.
"""

from alembic import op

from migrations.first_schema.usage_sums import SQLITE_TRIGGER as USAGE_SUMMED


def create() -> None:
    for statement in (*_ACCOUNTS, *_JOURNAL, *_PROOFS, *_PRICES, *_RECORDS, USAGE_SUMMED, *_refusals()):
        op.execute(statement)


def _refusals() -> list[str]:
    """Return the triggers that refuse to change or delete a row."""
    return [
        f"""
        CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} BEGIN
          SELECT RAISE(ABORT, '{reason}');
        END
        """
        for table, reason in _APPEND_ONLY.items()
        for action in (("DELETE",) if table == "account" else ("UPDATE", "DELETE"))
    ]


_APPEND_ONLY = {
    **dict.fromkeys(
        ("account", "event", "transfer", "usage", "block", "block_key", "credit_grant", "accepted_violation"),
        "the ledger is append-only",
    ),
    **dict.fromkeys(("price", "price_version"), "prices that were charged are kept"),
    "audit_entry": "the audit log is append-only",
}

_ACCOUNTS = (
    """
    CREATE TRIGGER account_open BEFORE INSERT ON account BEGIN
      SELECT RAISE(ABORT, 'an account is opened empty')
        WHERE NEW.debits_posted OR NEW.credits_posted OR NEW.debits_pending OR NEW.credits_pending
          OR NEW.applied_seq;
      SELECT RAISE(ABORT, 'accounts are not replaced')
        WHERE EXISTS (SELECT 1 FROM account WHERE id = NEW.id)
          OR EXISTS (SELECT 1 FROM account WHERE code = NEW.code);
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
)

_JOURNAL = (
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
        WHERE id IN (NEW.debit, NEW.credit) AND guarded
          AND CASE NEW.phase WHEN 'void' THEN 0 ELSE NEW.amount END - released >
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
        WHERE EXISTS (SELECT 1 FROM usage WHERE request_id = NEW.request_id);
      SELECT RAISE(ABORT, 'a usage row belongs to an event')
        WHERE NOT EXISTS (SELECT 1 FROM event WHERE seq = NEW.event_seq);
    END
    """,
)

_PROOFS = (
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
)

_PRICES = (
    """
    CREATE TRIGGER price_append BEFORE INSERT ON price BEGIN
      SELECT RAISE(ABORT, 'prices are not replaced') WHERE EXISTS (SELECT 1 FROM price WHERE id = NEW.id);
    END
    """,
    """
    CREATE TRIGGER price_version_append BEFORE INSERT ON price_version BEGIN
      SELECT RAISE(ABORT, 'prices are not replaced') WHERE EXISTS (
        SELECT 1 FROM price_version
        WHERE lane = NEW.lane AND name = NEW.name AND valid_from_ns = NEW.valid_from_ns);
      SELECT RAISE(ABORT, 'a version is one of a price')
        WHERE NOT EXISTS (SELECT 1 FROM price WHERE id = NEW.price_id);
    END
    """,
)

_RECORDS = (
    """
    CREATE TRIGGER audit_entry_append BEFORE INSERT ON audit_entry BEGIN
      SELECT RAISE(ABORT, 'the audit log is append-only')
        WHERE EXISTS (SELECT 1 FROM audit_entry WHERE seq = NEW.seq);
    END
    """,
    *(
        f"""
    CREATE TRIGGER {table}_append BEFORE INSERT ON {table} BEGIN
      SELECT RAISE(ABORT, 'rows of {table} are not replaced')
        WHERE EXISTS (SELECT 1 FROM {table} WHERE {is_there});
    END
    """  # noqa: S608  own names
        for table, is_there in (
            ("credit_grant", "id = NEW.id"),
            ("accepted_violation", "rule = NEW.rule AND location = NEW.location"),
        )
    ),
)
