"""`millrace usage`, `budget` and `payments`: what was spent, what may be, and how payments are."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accounting.rules import local
from gateway.cli.main import app
from gateway.cli.store import run_on_ledger
from gateway.settings import Settings
from tests.accounting.ledgers import usage


def millrace(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(folder)])


def data(folder: Path, *words: str) -> list[dict[str, str]]:
    done = millrace(folder, *words, "--json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def test_budgets_are_set_shown_with_what_is_spent_and_removed(tmp_path: Path) -> None:
    assert millrace(tmp_path, "credit", "add", "1.00").exit_code == 0
    assert millrace(tmp_path, "org", "add", "lab").exit_code == 0
    assert millrace(tmp_path, "users", "add", "ann", "--organization", "lab").exit_code == 0
    made = millrace(tmp_path, "key", "create", "camera", "--user", "ann", "--department", "vision", "--json")
    key_id = json.loads(made.stdout)["key_id"]
    record = usage("r1", user_id="ann", key_id=key_id, department="vision", charge_nano=10**9, lane="cloud")
    run_on_ledger(Settings(data_dir=tmp_path), lambda access: access.ledger.book(local.local_uses([record])))

    prefix = json.loads(made.stdout)["prefix"]
    assert millrace(tmp_path, "budget", "set", prefix, "2.00").exit_code == 0
    assert [row["scope"] for row in data(tmp_path, "budget", "list", prefix)] == [f"key:{key_id}"]
    assert millrace(tmp_path, "budget", "remove", prefix).exit_code == 0
    assert millrace(tmp_path, "budget", "set", "team:lab/vision", "5.00", "--per", "day").exit_code == 0
    shown = data(tmp_path, "budget", "list", "team:lab/vision")
    assert [(row["scope"], row["amount"], row["span"]) for row in shown] == [("team:lab/vision", "5.00", "day")]
    by_team = data(tmp_path, "usage", "--by", "team", "--days", "3660", "--scope", "team:lab/vision")
    assert [(row["team"], row["charge"]) for row in by_team] == [("vision", "1.00")]
    sheet = millrace(tmp_path, "usage", "--by", "user,key", "--days", "3660", "--csv").stdout
    assert [(row["user"], row["key"]) for row in csv.DictReader(sheet.splitlines())] == [("ann", key_id)]
    assert millrace(tmp_path, "budget", "remove", "team:lab/vision", "--per", "day").exit_code == 0
    assert data(tmp_path, "budget", "list") == []


@pytest.mark.parametrize(
    "words",
    [
        ("budget", "set", "team:lab", "5.00"),
        ("budget", "set", "user:owner", "5e3"),
        ("budget", "list", "galaxy:x"),
        ("usage", "--by", "colour"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert millrace(tmp_path, "credit", "add", "1.00").exit_code == 0
    failed = millrace(tmp_path, *words)
    assert (failed.exit_code, failed.stderr.count("\n")) == (2, 1), failed.stderr


def test_payments_that_are_off_say_so(tmp_path: Path) -> None:
    assert millrace(tmp_path, "credit", "add", "1.00").exit_code == 0
    found = json.loads(millrace(tmp_path, "payments", "status", "--json").stdout)
    assert (found["mode"], found["waiting"], found["reconciliation"]) == ("off", 0, None)
    assert "never" in millrace(tmp_path, "payments", "status").stdout
