"""`millrace credit` and `balance`: each payment once, each mistake in one line."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from accounting.metering.prices import PricedModel
from accounting.metering.versions import record
from accounting.money import NANO_PER_USD, Price
from accounting.payments.tables import StripeEvent
from gateway.cli.main import app
from gateway.cli.store import open_store
from gateway.settings import Settings
from tests.databases import prepared


def millrace(folder: Path, *words: str) -> Result:
    """Run a command on a data directory that has its tables."""
    return CliRunner().invoke(app, [*words, "--data-dir", str(prepared(folder).path)])


def test_a_payment_with_a_name_is_added_once(tmp_path: Path) -> None:
    for was_there in (False, True):
        added = millrace(tmp_path, "credit", "add", "5.00", "--id", "invoice-7", "--json")
        assert json.loads(added.stdout)["was_there"] is was_there
    assert millrace(tmp_path, "credit", "add", "6.00", "--id", "invoice-7").exit_code == 1
    balance = json.loads(millrace(tmp_path, "balance", "--json").stdout)
    assert balance[0]["credits_usd"] == "5.00"


def test_an_unknown_message_cannot_be_retried(tmp_path: Path) -> None:
    assert millrace(tmp_path, "credit", "add", "1.00").exit_code == 0
    refused = millrace(tmp_path, "payments", "retry", "evt_1")
    assert (refused.exit_code, "webhook evt_1 not found" in refused.stderr) == (2, True)


def test_a_retried_message_is_in_the_audit_log(tmp_path: Path) -> None:
    failed = StripeEvent(
        id="evt_1", kind="charge.refunded", object_id="ch_1", status="failed", due_ns=0, received_ns=0
    )
    with open_store(Settings(data_dir=tmp_path), make=True) as (_, write), write() as session, session.begin():
        session.add(failed)
    assert millrace(tmp_path, "payments", "retry", "evt_1").exit_code == 0
    again = millrace(tmp_path, "payments", "retry", "evt_1")
    assert (again.exit_code, "only failed webhooks" in again.stderr) == (2, True)
    log = json.loads(millrace(tmp_path, "audit", "--json").stdout)
    assert [(entry["action"], entry["target"]) for entry in log] == [("payments.retry", "message:evt_1")]


def test_credits_belong_to_a_user(tmp_path: Path) -> None:
    refused = millrace(tmp_path, "credit", "add", "1.00", "--user", "ann")
    assert (refused.exit_code, "millrace users add ann" in refused.stderr) == (2, True)
    assert millrace(tmp_path, "users", "add", "ann").exit_code == 0
    assert millrace(tmp_path, "credit", "add", "1.00", "--user", "ann").exit_code == 0


@pytest.mark.parametrize(
    "words", [("add", "0"), ("add", "much"), ("grant", "-1", "--user", "ann", "--days", "9")], ids=" ".join
)
def test_a_refused_amount_creates_no_ledger(tmp_path: Path, words: tuple[str, ...]) -> None:
    first, amount, *more = words
    folder = tmp_path / "new"
    refused = CliRunner().invoke(app, ["credit", first, *more, "--data-dir", str(folder), "--", amount])
    assert (refused.exit_code, refused.stderr.startswith("error: AMOUNT: ")) == (2, True), refused.stderr
    assert not folder.exists()


def test_what_is_granted_and_what_is_the_pool_s_pays_before_own_credits(tmp_path: Path) -> None:
    assert millrace(tmp_path, "credit", "add", "1.00").exit_code == 0
    assert millrace(tmp_path, "users", "add", "ann").exit_code == 0
    for was_there in (False, True):
        words = ("grant", "2.00", "--user", "ann", "--days", "90", "--id", "welcome", "--json")
        granted = millrace(tmp_path, "credit", *words)
        assert json.loads(granted.stdout)["was_there"] is was_there
    assert (
        millrace(tmp_path, "credit", "grant", "2", "--user", "ann", "--days", "9", "--id", "welcome").exit_code
        == 1
    )
    assert millrace(tmp_path, "credit", "add", "7", "--pool", "home").exit_code == 0
    assert millrace(tmp_path, "credit", "add", "1", "--user", "ann").exit_code == 0
    found = json.loads(millrace(tmp_path, "credit", "list", "--user", "ann", "--json").stdout)
    assert found == [
        {"account": "user:ann:promo:welcome", "available_usd": "2.00"},
        {"account": "pool:home:paid", "available_usd": "7.00"},
        {"account": "user:ann:paid", "available_usd": "1.00"},
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("balance", "--user", "no body"),
        ("credit", "add", "5", "--user", "ann"),
        ("credit", "add", "5e3"),
        ("credit", "add", "5", "--pool", "nowhere"),
        ("credit", "add", "5", "--pool", "home", "--user", "owner"),
        ("credit", "grant", "5", "--user", "ann", "--days", "9"),
        ("credit", "grant", "0", "--user", "owner", "--days", "9"),
        ("credit", "grant", "5", "--user", "owner", "--days", "9", "--id", "a b"),
        ("credit", "list", "--user", "ann"),
        ("credit", "add", "5", "--note", ""),
        ("credit", "add", "5", "--user", ""),
        ("credit", "goodwill", "0", "--user", "owner", "--id", "outage", "--reason", "an outage"),
        (
            "ledger",
            "correct",
            "a:b",
            "--from",
            "user:owner:paid",
            "--to",
            "asset:bank",
            "--amount=1",
            "--reason=r",
        ),
        ("ledger", "forgive", "case", "asset:user_recv:owner", "--amount", "0", "--reason", "gone"),
        ("balance", "--user", "ann"),
        ("statement", "--user", "ann"),
        ("statement", "--pool", "nowhere"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_and_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert millrace(tmp_path, "credit", "add", "1.00").exit_code == 0
    failed = millrace(tmp_path, *words)
    assert failed.exit_code == 2
    assert failed.stderr.startswith("error: ")
    assert failed.stderr.count("\n") == 1


def test_prices_are_shown_as_they_are_and_were_and_charges_reckoned_again(tmp_path: Path) -> None:
    def written(usd: int, at: str) -> None:
        price = Price(usd * NANO_PER_USD, usd * NANO_PER_USD, 2 * usd * NANO_PER_USD)
        at_ns = int(datetime.fromisoformat(at).timestamp()) * 10**9
        with open_store(Settings(data_dir=tmp_path), make=True) as (_, write), write() as session, session.begin():
            record(session, {"fast": PricedModel("cloud", "acme/fast", "settings", price, "acme")}, at_ns)

    def shown(*words: str) -> list[str]:
        found = json.loads(millrace(tmp_path, "prices", *words, "--json").stdout)
        return [row["completion_usd_per_mtok"] for row in found if row["model"] == "fast"]

    written(1, "2026-01-01T00:00:00Z")
    written(3, "2026-02-01T00:00:00Z")
    assert shown("list") == ["6.00"]
    assert shown("show", "fast") == ["6.00", "2.00"]
    assert shown("show", "fast", "--at", "2026-01-31") == ["2.00"]
    refused = millrace(tmp_path, "prices", "show", "slow", "--at", "2026-01-31T10:00")
    assert (refused.exit_code, "millrace prices list" in refused.stderr) == (1, True)
    assert millrace(tmp_path, "prices", "show", "fast", "--at", "soon").exit_code == 2
    checked = millrace(tmp_path, "prices", "check", "--json")
    assert (checked.exit_code, json.loads(checked.stdout)) == (0, [])
