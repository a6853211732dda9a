"""Blocks: every event is in exactly one, across gateways and key changes."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from accounting.proofs.blocks import blocks_after, every_key, public_keys
from accounting.proofs.maker import EventsMissing, Unproven
from accounting.proofs.signing_key import KeyFile, SigningKeyUnusable, make_key
from accounting.rules import grants
from runtime.database import Commits
from tests.accounting.ledgers import ANSWER_S, LedgerService
from tests.accounting.proofs.proven import book_some, checked, maker
from tests.databases import Kind


def _flood(ledger: LedgerService, events: int) -> None:
    waiting = [ledger.poster.submit(grants.manual_credit(f"c{n}", "ann", 1, "flood")) for n in range(events)]
    for future in waiting:
        future.result(ANSWER_S)


def test_blocks_hold_a_thousand_events_and_a_ledger_at_rest_gets_none(
    ledger: LedgerService, engine: Engine, tmp_path: Path
) -> None:
    making = maker(engine, tmp_path / "key")
    assert making.seal() == 0
    assert checked(engine).checkpoint is None
    _flood(ledger, 1_500)
    assert making.seal() == 2
    assert making.seal() == 0
    with ledger.read() as session:
        made = blocks_after(session, 0, limit=10)
    assert [(block.n, block.from_seq, block.to_seq) for block in made] == [(1, 1, 1_000), (2, 1_001, 1_500)]
    assert making.checkpoint == made[-1].checkpoint
    verdict = checked(engine)
    assert (verdict.flaws, verdict.blocks, verdict.events, verdict.tail_events) == ((), 2, 1_500, 0)


def test_a_running_maker_proves_what_is_booked_and_the_rest_when_it_stops(
    ledger: LedgerService, engine: Engine, tmp_path: Path
) -> None:
    making = maker(engine, tmp_path / "key", every_s=0.01)
    making.start()
    try:
        book_some(ledger, "r", 5)
    finally:
        making.stop(ANSWER_S)
    verdict = checked(engine)
    assert (verdict.flaws, verdict.events, verdict.tail_events) == ((), 35, 0)
    assert verdict.checkpoint == making.checkpoint


def test_of_two_makers_one_makes_each_block(ledger: LedgerService, engine: Engine, tmp_path: Path) -> None:
    """Both stand at the same place before either goes on, again and again."""
    gate = threading.Barrier(2)

    def meet(place: str) -> None:
        if place == "signed":
            # The second finds nothing left and ends; the other does not wait for it.
            with contextlib.suppress(threading.BrokenBarrierError):
                gate.wait(1)

    makers = [maker(engine, tmp_path / name, failpoint=meet) for name in ("here", "there")]
    made = [0, 0]

    def seal(number: int) -> None:
        made[number] += makers[number].seal()

    for name in "abc":
        gate.reset()
        book_some(ledger, name)
        both = [threading.Thread(target=seal, args=(number,)) for number in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join(ANSWER_S)
    verdict = checked(engine)
    assert (verdict.flaws, verdict.events, verdict.tail_events) == ((), 21, 0)
    assert sum(made) == verdict.blocks >= 3


def test_old_blocks_stay_valid_when_the_key_is_replaced(
    ledger: LedgerService, engine: Engine, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    making = maker(engine, key)
    book_some(ledger, "a", 2)
    making.seal()
    before = KeyFile(key).signer().fingerprint
    make_key(key)
    book_some(ledger, "b")
    making.seal()
    verdict = checked(engine)
    assert verdict.flaws == ()
    assert verdict.signed_by == {before: 1, KeyFile(key).signer().fingerprint: 1}
    with ledger.read() as session:
        made = blocks_after(session, 0, limit=10)
        assert set(public_keys(session, made)) == {key for key, _ in every_key(session)} == set(verdict.signed_by)
        assert set(public_keys(session, made[:1])) == {before}


def test_a_key_that_others_can_read_signs_nothing(tmp_path: Path) -> None:
    key = tmp_path / "key"
    assert len(KeyFile(key).signer().fingerprint) == 64
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(SigningKeyUnusable, match="chmod 600"):
        KeyFile(key).signer()
    key.chmod(0o600)
    key.write_text("no key")
    with pytest.raises(SigningKeyUnusable, match="not a private key"):
        KeyFile(key).signer()


def test_a_maker_that_cannot_sign_is_seen(ledger: LedgerService, engine: Engine, tmp_path: Path) -> None:
    key = tmp_path / "key"
    making = maker(engine, key, every_s=0.01)
    book_some(ledger, "a", 1, making.seal)
    key.chmod(0o644)
    making.start()
    try:
        book_some(ledger, "b")
        _until(lambda: making.unproven.events == 7)
        left = making.unproven
        assert "chmod 600" in left.trouble
        assert left.age_s(ledger.now_ns + 90 * 10**9) == 90
        key.chmod(0o600)
        _until(lambda: making.unproven == Unproven())
    finally:
        making.stop(ANSWER_S)
    assert checked(engine).tail_events == 0


def test_a_ledger_at_rest_is_not_read(ledger: LedgerService, engine: Engine, tmp_path: Path, kind: Kind) -> None:
    rounds, asked = [0], list[str]()
    commits = Commits(engine)

    def commit() -> int | None:
        rounds[0] += 1
        return commits.latest()

    making = maker(engine, tmp_path / "key", every_s=0.01, commit=commit)
    making.start()
    try:
        book_some(ledger, "a")
        _until(lambda: checked(engine).tail_events == 0)
        _until(lambda: making.unproven == Unproven())
        _wait_for(rounds, 3)
        event.listen(engine, "before_cursor_execute", lambda _c, _cursor, words, *_: asked.append(words))
        _wait_for(rounds, 5)
        assert bool(asked) is (kind != "sqlite")
        book_some(ledger, "b")
        _until(lambda: checked(engine).tail_events == 0)
    finally:
        making.stop(ANSWER_S)


def _wait_for(rounds: list[int], more: int) -> None:
    wanted = rounds[0] + more
    _until(lambda: rounds[0] >= wanted)


def _until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + ANSWER_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_new_key_belongs_to_the_holder_of_the_old_one(tmp_path: Path) -> None:
    key = tmp_path / "key"
    make_key(key)
    key.chmod(0o400)
    owner = 12_345 if os.geteuid() == 0 else os.geteuid()
    os.chown(key, owner, -1)
    before = key.read_bytes()
    make_key(key)
    assert key.read_bytes() != before
    assert (key.stat().st_uid, key.stat().st_mode & 0o777) == (owner, 0o400)


def _next_block(n: int = 4, events: int = 1, prev: str = "hash", key: str = "signed_by") -> str:
    """SQL that puts a block behind block 3, which is legal as it is."""
    return (
        f"INSERT INTO block SELECT {n}, to_seq + 1, to_seq + {events}, {events}, {prev}, prev, 0, {key}, signature"
        " FROM block WHERE n = 3"
    )


REWRITING = {
    "block changed": "UPDATE block SET made_ns = 0",
    "block deleted": "DELETE FROM block WHERE n = 3",
    "key changed": "UPDATE block_key SET public_key = public_key",
    "key deleted": "DELETE FROM block_key",
    "block out of turn": _next_block(n=5),
    "block made again": _next_block(n=3),
    "block over nothing": _next_block(events=9),
    "block of nothing": _next_block(events=0),
    "block of another past": _next_block(prev="prev"),
    "block of a stranger": _next_block(key="'ee'"),
}
REWRITING_ON = {
    "sqlite": {
        "block replaced": "INSERT OR REPLACE INTO block SELECT * FROM block WHERE n = 3",
        "key replaced": "INSERT OR REPLACE INTO block_key SELECT fingerprint, prev FROM block_key, block",
        "block of a stranger, references off": "PRAGMA foreign_keys = OFF;" + _next_block(key="'ee'"),
    },
    "postgresql": {"blocks truncated": "TRUNCATE block", "keys truncated": "TRUNCATE block_key CASCADE"},
}


def _is_refused(engine: Engine, script: str) -> bool:
    connection = engine.raw_connection()
    steps = ["PRAGMA query_only = OFF", *script.split(";")] if engine.dialect.name == "sqlite" else [script]
    try:
        for step in steps:
            connection.cursor().execute(step)
        connection.commit()
    except engine.dialect.loaded_dbapi.IntegrityError:
        return True
    finally:
        connection.invalidate()
    return False


def test_blocks_are_not_rewritten(ledger: LedgerService, engine: Engine, tmp_path: Path, kind: Kind) -> None:
    book_some(ledger, "a", 1, maker(engine, tmp_path / "key").seal)
    ledger.credit("ann", 1)
    statements = REWRITING | REWRITING_ON[kind]
    assert [name for name, statement in statements.items() if not _is_refused(engine, statement)] == []
    assert checked(engine).flaws == ()
    # SQL can add such a row, and verification finds it.
    assert not _is_refused(engine, _next_block())
    assert [flaw.where for flaw in checked(engine).flaws] == ["block 4"]


def test_no_block_is_made_over_a_gap(ledger: LedgerService, engine: Engine, tmp_path: Path, kind: Kind) -> None:
    book_some(ledger, "a")
    with engine.connect() as connection:
        if kind == "sqlite":
            connection.exec_driver_sql("DROP TRIGGER event_no_delete")
            connection.exec_driver_sql("DROP TRIGGER transfer_no_delete")
        else:
            connection.exec_driver_sql("SET session_replication_role = replica")
        connection.exec_driver_sql("DELETE FROM transfer WHERE event_seq = 3")
        connection.exec_driver_sql("DELETE FROM event WHERE seq = 3")
        connection.commit()
    making = maker(engine, tmp_path / "key")
    with pytest.raises(EventsMissing, match="event 3"):
        making.seal()
    assert ("event 3", "is missing") in {(flaw.where, flaw.what) for flaw in checked(engine).flaws}
