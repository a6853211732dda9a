"""Verification finds one flipped bit anywhere, and a past that was rewritten with another key."""

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from accounting.proofs.blocks import Checkpoint
from accounting.proofs.maker import BlockMaker
from accounting.proofs.signing_key import KeyFile
from accounting.proofs.tail import Tail
from accounting.proofs.verdict import Verdict
from accounting.proofs.verification import BlockUnknown, verify
from accounting.rules import local
from runtime.database import open_engine, read_sessions
from tests.accounting.ledgers import ANSWER_S, START_NS, LedgerService, usage
from tests.accounting.proofs.proven import book_some, checked, maker
from tests.databases import KINDS, Databases, Kind
from tests.examples import examples

PROVEN = ("event", "transfer", "usage", "account", "block", "block_key")


@pytest.fixture(scope="module", params=KINDS)
def proven(
    request: pytest.FixtureRequest, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A ledger whose events are all in blocks, by two keys; each test leaves it unchanged."""
    kind: Kind = request.param
    key = tmp_path_factory.mktemp("keys") / "key"
    with databases.database(kind) as dsn:
        engine = open_engine(dsn)
        with LedgerService(engine) as ledger:
            book_some(ledger, "a", 2, maker(engine, key).seal)
            book_some(ledger, "b", 1, maker(engine, key.with_name("other")).seal)
        verdict = checked(engine)
        assert (verdict.flaws, verdict.blocks, verdict.events, verdict.tail_events) == ((), 9, 21, 0)
        assert (len(verdict.signed_by), verdict.accounts_checked) == (2, True)
        yield engine
        engine.dispose()


@contextmanager
def tampering(engine: Engine) -> Iterator[Connection]:
    """A hand with the right to everything; what it does is undone."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            connection.exec_driver_sql("PRAGMA query_only = OFF")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            triggers = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'")
            for name in triggers.scalars().all():
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            connection.exec_driver_sql("SET session_replication_role = replica")
        try:
            yield connection
        finally:
            connection.rollback()
            connection.invalidate()


def verdict_on(connection: Connection) -> Verdict:
    session = Session(connection, join_transaction_mode="rollback_only")
    return verify(lambda: session, clock_ns=lambda: START_NS)


def _flipped(value: Any, bit: int) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ (1 << bit % 62)
    raw = bytearray(value.encode() if isinstance(value, str) else value)
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    return bytes(raw)


def _flip(connection: Connection, table: str, row: int, column: int, bit: int) -> str:
    """Flip a bit of a value that is there; says where it was."""
    key = {"event": "seq", "transfer": "seq", "usage": "request_id", "account": "id", "block": "n"}
    order = key.get(table, "fingerprint")
    rows = connection.exec_driver_sql(f"SELECT * FROM {table} ORDER BY {order}").mappings().all()
    old = rows[row % len(rows)]
    name = list(old)[column % len(old)]
    value = bytes(old[name]) if isinstance(old[name], memoryview) else old[name]
    assume(value not in (None, "", b""))
    new = _flipped(value, bit)
    is_postgresql = connection.dialect.name == "postgresql"
    mark = "%s" if is_postgresql else "?"
    place = "CAST(? AS TEXT)" if isinstance(value, str) and not is_postgresql else mark
    if isinstance(value, str) and is_postgresql:
        try:
            new = new.decode()
        except UnicodeDecodeError:
            assume(False)
        assume("\0" not in new)
    try:
        connection.exec_driver_sql(
            f"UPDATE {table} SET {name} = {place} WHERE {order} = {mark}", (new, old[order])
        )
    except (DataError, IntegrityError):
        assume(False)
    return f"{table}.{name} of {old[order]}: {value!r} -> {new!r}"


@settings(
    max_examples=examples(20, 60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
@given(
    table=st.sampled_from(PROVEN),
    row=st.integers(0, 99),
    column=st.integers(0, 99),
    bit=st.integers(0, 511),
)
def test_a_flipped_bit_of_any_row_is_found(proven: Engine, table: str, row: int, column: int, bit: int) -> None:
    with tampering(proven) as connection:
        where = _flip(connection, table, row, column, bit)
        assert not verdict_on(connection).is_sound, where


CREDIT_MORE = "UPDATE account SET credits_posted = credits_posted + 1 WHERE code = 'user:ann:paid'"


def test_what_was_changed_is_named(proven: Engine) -> None:
    def where(statement: str) -> list[str]:
        with tampering(proven) as connection:
            connection.exec_driver_sql(statement)
            return [flaw.where for flaw in verdict_on(connection).flaws]

    assert where("UPDATE event SET ref = 'other' WHERE seq = 5") == ["block 3", "event 5"]
    assert where("UPDATE event SET meta = '[]' WHERE seq = 5") == ["block 3", "event 5"]
    assert where("UPDATE event SET created_ns = 5 WHERE seq = 5") == ["block 3"]
    assert where("UPDATE usage SET outcome = 'failed' WHERE event_seq = 4") == ["block 2", "event 4"]
    assert where("UPDATE usage SET event_seq = 77 WHERE event_seq = 4") == ["block 2", "event 4", "event 77"]
    assert where("UPDATE usage SET event_seq = -7 WHERE event_seq = 4") == ["block 2", "event 4", "event -7"]
    assert where(CREDIT_MORE) == ["accounts"]
    assert where("DELETE FROM block WHERE n = 4") == ["block 5"]
    assert {"event 8", "block 4", "accounts"} <= set(where("DELETE FROM event WHERE seq = 8"))


def test_a_count_of_one_of_many_requests_is_named(ledger: LedgerService, engine: Engine, tmp_path: Path) -> None:
    """They are hashed in the order of their ids, whatever the order in which they ended."""
    ended = local.local_uses([usage(name, completion_tokens=tokens) for name, tokens in (("b", 3), ("a", 4))])
    ledger.post(ended)
    maker(engine, tmp_path / "key").seal()
    assert checked(engine).flaws == ()
    with tampering(engine) as connection:
        connection.exec_driver_sql("UPDATE usage SET completion_tokens = 5 WHERE request_id = 'a'")
        assert [flaw.where for flaw in verdict_on(connection).flaws] == ["block 1", "event 1"]


def test_the_tail_is_counted_and_its_transfers_too(ledger: LedgerService, engine: Engine, tmp_path: Path) -> None:
    assert checked(engine).checkpoint is None
    making = maker(engine, tmp_path / "key")
    book_some(ledger, "a")
    making.seal()
    book_some(ledger, "b")
    verdict = checked(engine)
    assert (verdict.flaws, verdict.events, verdict.tail_events) == ((), 7, 7)
    with tampering(engine) as connection:
        connection.exec_driver_sql(CREDIT_MORE)
        assert [flaw.where for flaw in verdict_on(connection).flaws] == ["accounts"]


def test_it_stops_when_told_and_goes_on_from_a_block(proven: Engine) -> None:
    chances = iter([True] * 4)
    read = read_sessions(proven)
    first = verify(read, go_on=lambda: next(chances, False))
    assert (first.is_complete, first.next_block, first.blocks, first.accounts_checked) == (False, 4, 3, False)
    rest = verify(read, from_block=4)
    assert (rest.flaws, rest.is_complete, rest.blocks, rest.accounts_checked) == ((), True, 6, False)
    assert verify(read, from_block=10).is_complete
    with pytest.raises(BlockUnknown):
        verify(read, from_block=11)


def test_a_rewritten_past_is_distinguished_from_the_one_that_was_kept(proven: Engine, tmp_path: Path) -> None:
    """An attacker with full database access signs another past with its own key. Only a checkpoint shows it."""
    kept = checked(proven).checkpoint
    assert kept is not None
    assert verify(read_sessions(proven), known=[Checkpoint.parse(str(kept))]).is_sound
    with tampering(proven) as connection:
        for statement in (
            "DELETE FROM block",
            "DELETE FROM block_key",
            "UPDATE event SET created_ns = created_ns + 1 WHERE seq = 5",
        ):
            connection.exec_driver_sql(statement)
        session = Session(connection, join_transaction_mode="rollback_only")
        forger = BlockMaker(lambda: session, lambda: session, KeyFile(tmp_path / "forged"))
        forger.seal()
        assert verdict_on(connection).is_sound
        found = verify(lambda: session, known=[kept]).flaws
        assert [flaw.where for flaw in found] == [f"block {kept.n}"]


def test_blocks_that_were_taken_away_are_missed(ledger: LedgerService, engine: Engine, tmp_path: Path) -> None:
    """All of them with what they covered forged, the newest, and those of a key that is known."""
    book_some(ledger, "a", 2, maker(engine, tmp_path / "key").seal)
    book_some(ledger, "b", 1, maker(engine, tmp_path / "other").seal)

    def where(*statements: str, hours: int = 0, minutes: int = 0) -> list[str]:
        later_ns = (hours * 60 + minutes) * 60 * 10**9
        with tampering(engine) as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
            session = Session(connection, join_transaction_mode="rollback_only")
            found = verify(lambda: session, clock_ns=lambda: START_NS + later_ns)
            assert (found.tail_age_s or 0) >= hours * 3600 or not found.tail_events
            return sorted(flaw.where.partition(" ")[0] for flaw in found.flaws)

    forged = 'UPDATE event SET meta = \'{"reason": "forged"}\' WHERE seq = 1'
    assert where("DELETE FROM block") == ["key", "key"]
    assert where("DELETE FROM block", "DELETE FROM block_key", forged) == ["event"]
    assert where("DELETE FROM block", "DELETE FROM block_key") == []
    assert where("DELETE FROM block", "DELETE FROM block_key", minutes=2) == ["tail"]
    assert where("DELETE FROM block", "DELETE FROM block_key", hours=2) == ["tail"]
    assert where("DELETE FROM block WHERE n > 1") == ["key"]
    assert where("DELETE FROM block WHERE n > 7", hours=2) == ["tail"]
    assert where(hours=2) == []


def test_more_than_a_maker_can_leave_is_a_flaw() -> None:
    left = Tail(now_ns := 10**18)
    minute_ns = 60 * 10**9
    for seq, made_ns in enumerate([now_ns] * 5_000 + [now_ns - minute_ns] * 5_000 + [now_ns + minute_ns] * 5_000):
        left.add(((seq, "", "credit", b"", "", made_ns, "{}"), (), ()))
    assert list(left.flaws(3600)) == []
    left.add(((15_000, "", "credit", b"", "", now_ns - minute_ns, "{}"), (), ()))
    assert [flaw.where for flaw in left.flaws(3600)] == ["tail"]
    assert left.age_s == 60


def test_unexpected_keys_are_named(proven: Engine) -> None:
    read = read_sessions(proven)
    first, second = checked(proven).signed_by
    assert verify(read, signers=[first, second]).is_sound
    assert [flaw.where for flaw in verify(read, signers=[first]).flaws] == ["block 7"]


@pytest.fixture(scope="module")
def file(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole SQLite file with a proven ledger and an empty journal."""
    folder = tmp_path_factory.mktemp("file")
    with databases.database("sqlite") as dsn:
        engine = open_engine(dsn)
        with LedgerService(engine) as ledger:
            book_some(ledger, "a", 8, maker(engine, folder / "key").seal)
        with engine.connect() as connection:
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        engine.dispose()
        shutil.copy(dsn.removeprefix("sqlite:///"), folder / "ledger.db")
    return folder / "ledger.db"


def _rows(path: Path) -> Any:
    """Every row as the tables have it, whatever indexes say; None where they cannot be read."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return [connection.execute(f"SELECT * FROM {table} NOT INDEXED").fetchall() for table in PROVEN]
    except (sqlite3.Error, UnicodeDecodeError):
        return None


@settings(max_examples=examples(20, 80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_of_the_file_is_found(file: Path, place: float, bit: int) -> None:
    """Where it changes a row, that is, or keeps one from being read: files have room that nothing is in."""
    raw = bytearray(file.read_bytes())
    raw[int(place * len(raw))] ^= 1 << bit
    flipped = file.with_name("flipped.db")
    flipped.write_bytes(raw)
    rows = _rows(flipped)
    engine = open_engine(f"sqlite:///{flipped}")
    try:
        is_sound = checked(engine).is_sound
    except (DBAPIError, UnicodeDecodeError):  # It cannot even be opened.
        is_sound = False
    finally:
        engine.dispose()
        for suffix in ("-wal", "-shm"):
            flipped.with_name(flipped.name + suffix).unlink(missing_ok=True)
    assert not is_sound or rows == _rows(file)


@pytest.mark.parametrize("times", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_a_ledger_that_is_written_meanwhile_raises_no_alarm(
    ledger: LedgerService, engine: Engine, tmp_path: Path, times: int
) -> None:
    making = maker(engine, tmp_path / "key", every_s=0.001)
    writer = threading.Thread(target=book_some, args=(ledger, "r", times))
    making.start()
    writer.start()
    try:
        while writer.is_alive():
            assert checked(engine).flaws == ()
    finally:
        writer.join(ANSWER_S)
        making.stop(ANSWER_S)
    assert checked(engine).events == 7 * times
