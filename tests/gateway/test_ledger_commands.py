"""`millrace ledger`: verify says so with its exit status, and where the flaw is."""

import json
import shutil
import socket
import sqlite3
import subprocess
from pathlib import Path
from subprocess import PIPE

import msgspec
import pytest
from typer.testing import CliRunner, Result

from accounting.ledger.poster import Poster
from accounting.ledger.postings import Leg, Posting
from accounting.proofs.maker import BlockMaker
from accounting.proofs.signing_key import KeyFile
from gateway.billing.verification import VerifyQuestion
from gateway.billing.verify_process import answer
from gateway.cli.main import app
from runtime.data_folder import DataFolder
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.interpreter import command_of, environment

PATIENCE_S = 60.0


def millrace(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(folder)])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two credits, each in a block of its own; a third in none."""
    folder = tmp_path_factory.mktemp("ledger")
    kept = DataFolder(folder)
    for number in range(3):
        assert millrace(folder, "credit", "add", "1.00", "--id", f"c{number}").exit_code == 0
        if number < 2:
            engine = open_engine(kept.dsn)
            BlockMaker(read_sessions(engine), write_sessions(engine), KeyFile(kept.ledger_key)).seal()
            engine.dispose()
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared ledger: each test changes its own."""
    return Path(shutil.copytree(prepared, tmp_path / "copy"))


def test_a_whole_ledger_is_said_to_be_whole(folder: Path) -> None:
    told = millrace(folder, "ledger", "verify")
    assert told.exit_code == 0, told.stderr
    assert "2 blocks with 2 entries" in told.stderr
    assert "Unsigned entries: 1" in told.stderr
    checkpoint = told.stdout.strip()
    listed = json.loads(millrace(folder, "ledger", "blocks", "--json").stdout)
    assert [f"{block['n']}:{block['hash']}" for block in listed][-1] == checkpoint
    assert millrace(folder, "ledger", "verify", "--known", checkpoint).exit_code == 0
    assert json.loads(millrace(folder, "ledger", "verify", "--json").stdout)["sound"] is True
    assert json.loads(millrace(folder, "ledger", "health", "--json").stdout) == []


def test_a_rewritten_ledger_is_said_to_be_so(folder: Path) -> None:
    with sqlite3.connect(DataFolder(folder).database) as connection:
        connection.execute("DROP TRIGGER event_no_update")
        connection.execute("UPDATE event SET ref = 'other' WHERE seq = 2")
    told = millrace(folder, "ledger", "verify", "--json")
    verdict = json.loads(told.stdout)
    assert (told.exit_code, verdict["sound"]) == (1, False)
    assert [flaw["where"] for flaw in verdict["flaws"]] == ["block 2", "event 2"]


def test_a_ledger_without_its_blocks_and_keys_is_said_to_be_so(folder: Path) -> None:
    with sqlite3.connect(DataFolder(folder).database) as connection:
        for table in ("block", "block_key"):
            connection.execute(f"DROP TRIGGER {table}_no_delete")
            connection.execute(f"DELETE FROM {table}")
    told = millrace(folder, "ledger", "verify", "--json")
    assert (told.exit_code, [flaw["where"] for flaw in json.loads(told.stdout)["flaws"]]) == (1, ["block 2"])


def test_a_damaged_note_of_the_newest_block_is_one_line(folder: Path) -> None:
    DataFolder(folder).ledger_checkpoint.write_bytes(b"12:\xff")
    told = millrace(folder, "ledger", "verify")
    assert (told.exit_code, "is damaged" in told.stderr) == (1, True)


def test_a_new_key_signs_from_then_on(folder: Path) -> None:
    before = DataFolder(folder).ledger_key.read_bytes()
    assert millrace(folder, "ledger", "rotate").exit_code == 0
    assert DataFolder(folder).ledger_key.read_bytes() != before
    log = json.loads(millrace(folder, "audit", "--json").stdout)
    assert log[0]["action"] == "ledger.rotate"
    assert millrace(folder, "ledger", "verify").exit_code == 0


@pytest.mark.parametrize("words", [("--from-block", "9"), ("--known", "head")], ids=" ".join)
def test_a_mistake_is_one_line_and_wrong_usage(folder: Path, words: tuple[str, ...]) -> None:
    failed = millrace(folder, "ledger", "verify", *words)
    assert (failed.exit_code, failed.stderr.count("\n")) == (2, 1)
    assert failed.stderr.startswith("error: ")


def test_a_verification_ends_when_its_time_is_over(folder: Path) -> None:
    asked = VerifyQuestion(DataFolder(folder).dsn, from_block=1, limit_s=60)
    hurried = msgspec.structs.replace(asked, limit_s=0)
    verdicts = [answer(question).verdict or {} for question in (asked, hurried)]
    assert [(verdict["complete"], verdict["blocks"]) for verdict in verdicts] == [(True, 2), (False, 0)]


def test_a_verification_ends_with_the_gateway_that_wanted_it() -> None:
    """It waits for a database that says nothing when its stdin closes: nobody waits for the verdict."""
    with (
        socket.create_server(("127.0.0.1", 0)) as database,
        subprocess.Popen(
            command_of("gateway.billing.verify_process"), env=environment(), stdin=PIPE, stdout=PIPE, stderr=PIPE
        ) as verification,
    ):
        dsn = f"postgresql+psycopg://ann@127.0.0.1:{database.getsockname()[1]}/ledger"
        question = VerifyQuestion(dsn, from_block=1, limit_s=60)
        assert verification.stdin
        verification.stdin.write(msgspec.json.encode(question) + b"\n")
        verification.stdin.flush()
        database.settimeout(PATIENCE_S)
        with database.accept()[0]:
            said = verification.communicate(timeout=PATIENCE_S)
    assert (verification.returncode, *said) == (1, b"", b"")


@pytest.mark.parametrize("said", [b"", b'{"dsn": "sq'])
def test_a_verification_without_its_whole_question_ends_without_a_word(said: bytes) -> None:
    command = command_of("gateway.billing.verify_process")
    done = subprocess.run(command, env=environment(), input=said, capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_an_operator_accepts_what_an_event_broke_and_corrects_what_it_moved(folder: Path) -> None:
    """Money that an event left in a clearing account: moved on by hand, and both events accepted by name."""
    engine = open_engine(DataFolder(folder).dsn)
    poster = Poster(write_sessions(engine))
    poster.start()
    left = Posting("x", "correction", "x", (Leg("user:owner:paid", "clearing:burst", 10**9),))
    broke = poster.submit(left).result(30).event_seq
    assert poster.stop(30)
    engine.dispose()
    told = millrace(folder, "ledger", "health", "--json")
    assert (told.exit_code, {each["rule"] for each in json.loads(told.stdout)}) == (
        1,
        {"clearing_empty", "clearing_passes_on"},
    )
    way = ("--from", "clearing:burst", "--to", "user:owner:paid", "--amount", "1.00", "--reason", "undone")
    assert millrace(folder, "ledger", "correct", "incident-7", *way).exit_code == 0
    again = millrace(folder, "ledger", "correct", "incident-7", *way, "--json")
    assert json.loads(again.stdout)["was_there"] is True
    mended = json.loads(again.stdout)["event"]
    for event in (broke, mended):
        assert millrace(folder, "ledger", "health").exit_code == 1
        words = ("ledger", "accept", "clearing_passes_on", str(event), "--reason", "incident 7")
        assert millrace(folder, *words).exit_code == millrace(folder, *words).exit_code == 0
    told = millrace(folder, "ledger", "health", "--json")
    (known,) = json.loads(told.stdout)
    assert (told.exit_code, known["rule"], known["accepted"]) == (0, "clearing_passes_on", True)
    for rule, where in (("equation", "usd-9"), ("no_such_rule", "1"), ("clearing_passes_on", "1")):
        refused = millrace(folder, "ledger", "accept", rule, where, "--reason", "test")
        assert (refused.exit_code, len(refused.stderr.splitlines()) > 0) == (2, True)
    with sqlite3.connect(DataFolder(folder).database) as connection:
        written = connection.execute("SELECT action FROM audit_entry WHERE action LIKE 'ledger.%'").fetchall()
    assert sorted(action for (action,) in written) == ["ledger.accept", "ledger.accept", "ledger.correct"]


def test_goodwill_settles_a_debt_that_can_be_forgiven_and_a_bill_is_paid_once(folder: Path) -> None:
    debt = ("--from", "asset:user_recv:ann", "--to", "asset:bank", "--amount", "3.00", "--reason", "test")
    assert millrace(folder, "users", "add", "ann").exit_code == 0
    assert millrace(folder, "ledger", "correct", "lent", *debt).exit_code == 0
    good = ("credit", "goodwill", "1.00", "--user", "ann", "--id", "outage", "--reason", "an evening lost")
    assert millrace(folder, *good).exit_code == millrace(folder, *good).exit_code == 0
    assert json.loads(millrace(folder, "balance", "--user", "ann", "--json").stdout)[0]["credits_usd"] == "0.00"

    forgive = ("ledger", "forgive", "case-9", "asset:user_recv:ann", "--reason", "gone", "--amount")
    assert millrace(folder, *forgive, "2.01").exit_code == 1, "more than is owed"
    assert millrace(folder, *forgive, "2.00").exit_code == 0
    refused = millrace(folder, "ledger", "forgive", "x", "user:ann:paid", "--reason", "r", "--amount", "1")
    assert (refused.exit_code, refused.stderr.startswith("error: ACCOUNT: ")) == (2, True)

    bill = ("ledger", "invoice", "acme", "2026-11", "--amount", "2.00")
    told = millrace(folder, *bill, "--accrued", "1.90")
    assert (told.exit_code, "more than 1 %" in told.stderr) == (0, True)
    assert json.loads(millrace(folder, *bill, "--accrued", "1.90", "--json").stdout)["was_there"] is True
    assert millrace(folder, *bill, "--accrued", "1.80").exit_code == 1, "another bill of that number"
    assert millrace(folder, "ledger", "health").exit_code == 0
