"""The triggers and constraints: what SQL statements cannot do to the ledger, on either database."""

import pytest
from sqlalchemy import Engine, text

from accounting.rules import local
from tests.accounting.ledgers import LedgerService, usage
from tests.databases import Kind

TRANSFER = (
    "INSERT INTO transfer (seq, event_seq, leg, debit, credit, amount, phase, pending_seq, expires_ns) VALUES "
)
ACCOUNT = "INSERT INTO account VALUES "
REPLACE_BY_KEY = "INSERT OR REPLACE INTO event SELECT 9, idem_key, kind, req_hash, ref, 0, meta FROM event"

FORBIDDEN = {
    "event changed": "UPDATE event SET ref = 'other'",
    "event deleted": "DELETE FROM event",
    "transfer changed": "UPDATE transfer SET amount = 1",
    "transfer deleted": "DELETE FROM transfer WHERE seq = 1",
    "usage changed": "UPDATE usage SET completion_tokens = 0",
    "usage deleted": "DELETE FROM usage",
    "account deleted": "DELETE FROM account WHERE id = 1",
    "balance forged": "UPDATE account SET credits_posted = credits_posted + 5 WHERE code = 'user:ann:paid'",
    "balance forged with a known transfer": "UPDATE account SET credits_posted = 10, applied_seq = 2 WHERE id = 2",
    "balance forged with no transfer": "UPDATE account SET credits_posted = 10, applied_seq = 99 WHERE id = 2",
    "guard taken off": "UPDATE account SET guarded = (1 = 0) WHERE code = 'user:ann:paid'",
    "account opened full": ACCOUNT + "(99, 'user:eve:paid', 'usd-9', 'liability', 'C', (1 = 1), 0, 9, 0, 0, 0)",
    "account of no normal": ACCOUNT + "(99, 'user:eve:paid', 'usd-9', 'liability', 'D', (1 = 1), 0, 0, 0, 0, 0)",
    "overdraft": TRANSFER + "(9, 1, 9, 2, 1, 1001, 'single', NULL, NULL)",
    "overdraft by a hold": TRANSFER + "(9, 1, 9, 2, 1, 501, 'pending', NULL, 1)",
    "money into compute units": TRANSFER + "(9, 1, 9, 1, 4, 1, 'single', NULL, NULL)",
    "nothing moved": TRANSFER + "(9, 1, 9, 2, 1, 0, 'single', NULL, NULL)",
    "negative": TRANSFER + "(9, 1, 9, 2, 1, -1, 'single', NULL, NULL)",
    "more than a million dollars": TRANSFER + "(9, 1, 9, 1, 2, 1000000000000001, 'single', NULL, NULL)",
    "one account on both sides": TRANSFER + "(9, 1, 9, 1, 1, 1, 'single', NULL, NULL)",
    "post beyond the hold": TRANSFER + "(9, 1, 9, 2, 3, 501, 'post', 2, NULL)",
    "post to another account": TRANSFER + "(9, 1, 9, 2, 1, 100, 'post', 2, NULL)",
    "post of what is no hold": TRANSFER + "(9, 1, 9, 1, 2, 100, 'post', 1, NULL)",
    "account of nobody": TRANSFER + "(9, 1, 9, 99, 2, 1, 'single', NULL, NULL)",
    "accounts of nobody": TRANSFER + "(9, 1, 9, 98, 99, 1, 'single', NULL, NULL)",
    "event of nobody": TRANSFER + "(9, 99, 0, 1, 2, 1, 'single', NULL, NULL)",
    "overdraft that the next row makes good": TRANSFER
    + "(9, 1, 9, 2, 1, 1001, 'single', NULL, NULL), (10, 1, 10, 1, 2, 5000, 'single', NULL, NULL)",
    "post of a hold that comes later": TRANSFER
    + "(9, 1, 9, 2, 3, 1, 'post', 10, NULL), (10, 1, 10, 2, 3, 1, 'pending', NULL, 1)",
    "a number before the last": TRANSFER + "(-1, 1, 9, 1, 2, 1, 'single', NULL, NULL)",
    "hold for ever": TRANSFER + "(9, 1, 9, 2, 1, 1, 'pending', NULL, NULL)",
    "late without a reaper": "INSERT INTO event SELECT 9, 'cap:r1', 'late', req_hash, 'r1', 0, '{}' FROM event"
    " WHERE seq = 1",
}
FORBIDDEN_ON = {
    "sqlite": {
        **{
            f"{name} by insert or {way}": TRANSFER.replace("INSERT", f"INSERT OR {way}") + values
            for way in ("IGNORE", "FAIL")
            for name, values in {
                "overdraft": "(9, 1, 9, 2, 1, 1001, 'single', NULL, NULL)",
                "overdraft by a hold": "(9, 1, 9, 2, 1, 501, 'pending', NULL, 1)",
            }.items()
        },
        "event of nobody, references off": "PRAGMA foreign_keys = OFF;"
        + TRANSFER
        + "(9, 99, 0, 1, 2, 1, 'single', NULL, NULL)",
        "account of nobody, references off": "PRAGMA foreign_keys = OFF;"
        + TRANSFER
        + "(9, 1, 9, 99, 2, 1, 'single', NULL, NULL)",
        "usage of nobody, references off": "PRAGMA foreign_keys = OFF;"
        "INSERT INTO usage SELECT 'r99', user_id, department, key_id, model, lane, provider,"
        " 0, 0, 0, count_source, outcome, 0, 0, 0, 0, 0, 0, 99, NULL, 0, 0, NULL FROM usage",
        "overdraft, checks off": "PRAGMA ignore_check_constraints = ON;"
        + TRANSFER
        + "(9, 1, 9, 2, 1, 1001, 'single', NULL, NULL)",
        "negative, checks off": "PRAGMA ignore_check_constraints = ON;"
        + TRANSFER
        + "(9, 1, 9, 2, 1, -1, 'single', NULL, NULL)",
        "usage replaced": "INSERT OR REPLACE INTO usage SELECT * FROM usage",
        "event replaced": "INSERT OR REPLACE INTO event VALUES (1, 'x', 'credit', x'00', 'x', 0, '{}')",
        "event replaced by key": REPLACE_BY_KEY,
        "transfer replaced": TRANSFER.replace("INSERT", "INSERT OR REPLACE")
        + "(1, 9, 9, 1, 2, 9, 'single', NULL, NULL)",
        "account replaced": ACCOUNT.replace("INSERT", "INSERT OR REPLACE")
        + "(2, 'user:ann:paid', 'usd-9', 'liability', 'C', 0, 0, 0, 0, 0, 0)",
        "text for a number": TRANSFER + "(9, 1, 9, 1, 2, 'much', 'single', NULL, NULL)",
    },
    "postgresql": {
        **{
            f"{table} truncated": f"TRUNCATE {table} CASCADE"
            for table in ("account", "event", "transfer", "usage")
        },
        "overdraft before a table of the same name": "CREATE TEMP TABLE account AS SELECT * FROM public.account;"
        "UPDATE account SET guarded = false;" + TRANSFER + "(9, 1, 9, 2, 1, 1001, 'single', NULL, NULL)",
        "balance forged by a trigger": """
            CREATE TABLE bait (id INT);
            CREATE FUNCTION forge() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              UPDATE account SET credits_posted = credits_posted + 5 WHERE code = 'user:ann:paid';
              RETURN NULL;
            END $$;
            CREATE TRIGGER forge AFTER INSERT ON bait FOR EACH ROW EXECUTE FUNCTION forge();
            INSERT INTO bait VALUES (1)
            """,
    },
}


@pytest.fixture
def written(ledger: LedgerService) -> None:
    """Accounts: 1 bank, 2 Ann, 3 clearing, 4 department, 5 supply. Transfers: 1 credits 1000, 2 holds 500."""
    ledger.credit("ann", 1000)
    ledger.hold("r1", "ann", 500)
    ledger.post(local.local_use(usage("r2", compute_nano=7)))


def _is_refused(engine: Engine, script: str) -> bool:
    """Run a script as at the SQL prompt: outside of the gateway's habits, and what did not fail stays."""
    connection = engine.raw_connection()
    steps = ["PRAGMA query_only = OFF", *script.split(";")] if engine.dialect.name == "sqlite" else [script]
    try:
        for step in steps:
            connection.cursor().execute(step)
        connection.commit()
    except engine.dialect.loaded_dbapi.IntegrityError:
        connection.commit()
        return True
    finally:
        connection.invalidate()
    return False


@pytest.mark.usefixtures("written")
def test_the_past_cannot_be_rewritten_nor_credit_invented(
    engine: Engine, ledger: LedgerService, kind: Kind
) -> None:
    statements = FORBIDDEN | FORBIDDEN_ON[kind]
    assert [name for name, statement in statements.items() if not _is_refused(engine, statement)] == []
    assert ledger.findings() == []


@pytest.mark.usefixtures("written")
def test_the_last_legal_nano_may_be_spent(engine: Engine, ledger: LedgerService) -> None:
    assert not _is_refused(engine, TRANSFER + "(4, 1, 9, 2, 1, 500, 'single', NULL, NULL)")
    assert ledger.balance("user:ann:paid").available_nano == 0
    assert _is_refused(engine, TRANSFER + "(5, 1, 10, 2, 1, 1, 'single', NULL, NULL)")


@pytest.mark.usefixtures("written")
def test_health_names_what_is_broken(engine: Engine, ledger: LedgerService) -> None:
    """An admin who may drop triggers can still forge, but cannot make the ledger's sums agree."""
    drop = "DROP TRIGGER account_fixed"
    with engine.begin() as connection:
        connection.execute(text(drop if engine.dialect.name == "sqlite" else f"{drop} ON account"))
        connection.execute(
            text("UPDATE account SET credits_posted = credits_posted + 5 WHERE code = 'user:ann:paid'")
        )
    assert {finding.rule: finding.where for finding in ledger.findings()} == {
        "debits_equal_credits": ("usd-9, 1000, 1005, 500, 500",),
        "equation": ("usd-9, 1000, 1005",),
        "credits_are_sums": ("user:ann:paid, 1005, 1000, 0, 0",),
    }
