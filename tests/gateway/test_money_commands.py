"""`millrace credit` and `balance`: each payment once, each mistake in one line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app


def millrace(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(folder)])


def test_a_payment_with_a_name_is_added_once(tmp_path: Path) -> None:
    for was_there in (False, True):
        added = millrace(tmp_path, "credit", "add", "5.00", "--id", "invoice-7", "--json")
        assert json.loads(added.stdout)["was_there"] is was_there
    assert millrace(tmp_path, "credit", "add", "6.00", "--id", "invoice-7").exit_code == 1
    balance = json.loads(millrace(tmp_path, "balance", "--json").stdout)
    assert balance[0]["credits_usd"] == "5.00"


def test_credits_are_somebody_s(tmp_path: Path) -> None:
    refused = millrace(tmp_path, "credit", "add", "1.00", "--user", "ann")
    assert (refused.exit_code, "millrace people add ann" in refused.stderr) == (2, True)
    assert millrace(tmp_path, "people", "add", "ann").exit_code == 0
    assert millrace(tmp_path, "credit", "add", "1.00", "--user", "ann").exit_code == 0


@pytest.mark.parametrize(
    "words",
    [("balance", "--user", "no body"), ("credit", "add", "5", "--user", "ann"), ("credit", "add", "5e3")],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert millrace(tmp_path, "credit", "add", "1.00").exit_code == 0
    failed = millrace(tmp_path, *words)
    assert failed.exit_code == 2
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1
