"""Commands that need no gateway: what others wrote is shown and not obeyed, and looking makes nothing."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.billing.request_log import RequestLog
from gateway.cli.machines import DEFAULT_PORT, split_address, where_and_token
from gateway.cli.main import app
from runtime.database import open_engine, read_sessions, write_sessions
from tests.gateway.test_request_log import entry
from tests.gateways import complete_command, until


def millrace(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(folder)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory with a key in it, inside of one that everybody may look into."""
    folder = tmp_path / "[bold]data"
    folder.mkdir()
    folder.chmod(0o755)
    assert millrace(folder, "key", "create", "first").exit_code == 0
    assert millrace(folder, "users", "add", "bob").exit_code == 0
    made = millrace(folder, "key", "create", "[/x] :smile:", "--user", "bob", "--department", "lab", "--json")
    assert json.loads(made.stdout)["user"] == "bob"
    return folder


def test_what_callers_wrote_is_no_markup_and_no_order_to_the_terminal(folder: Path) -> None:
    engine = open_engine(f"sqlite:///{folder / 'millrace.db'}")
    log = RequestLog(read_sessions(engine), write_sessions(engine))
    log.start()
    log.add_all([entry("r1", model="[/x]", error="\x1b]0;mine\x07[red]\x9b31m\n\u202e")])
    until(lambda: log.find("r1"))
    log.stop()
    engine.dispose()
    shown = millrace(folder, "requests")
    assert shown.exit_code == 0, shown.exception
    assert "[/x]" in shown.stdout
    assert "[red]" in shown.stdout
    as_json = millrace(folder, "requests", "--json").stdout
    assert "\x9b" in json.loads(as_json)[0]["error"]
    for text in (shown.stdout, as_json):
        assert not {"\x1b", "\x07", "\x9b", "\u202e" if text is shown.stdout else "\x1b"} & set(text)
    assert "[/x] :smile:" in millrace(folder, "key", "list").stdout
    refused = millrace(folder / "none[/x]", "requests")
    assert "none[/x]" in refused.stderr


def test_a_key_says_whose_it_is(folder: Path) -> None:
    row = json.loads(millrace(folder, "key", "list", "--json").stdout)[0]
    assert (row["user"], row["department"]) == ("bob", "lab")
    for words, code in (("--user", "b b"), 2), (("--department", "a:b"), 2), (("--lanes", "moon"), 2):
        refused = millrace(folder, "key", "create", "x", *words)
        assert (refused.exit_code, refused.stderr.count("\n")) == (code, 1), refused.stderr
    assert len(json.loads(millrace(folder, "key", "list", "--json").stdout)) == 2


def test_users_of_an_organization_are_listed_by_its_name(folder: Path) -> None:
    assert millrace(folder, "org", "add", "lab", "--name", "The lab").exit_code == 0
    assert millrace(folder, "users", "add", "ann", "--organization", "lab").exit_code == 0
    found = millrace(folder, "users", "list", "--organization", "The lab", "--json")
    assert [user["user_id"] for user in json.loads(found.stdout)] == ["ann"]
    refused = millrace(folder, "users", "list", "--organization", "nope")
    assert (refused.exit_code, "nope" in refused.stderr) == (2, True)


def test_what_is_made_is_closed_to_others_in_an_open_folder(folder: Path) -> None:
    made = [path for path in folder.iterdir() if path.name != "lock"]
    assert {"millrace.db", "secret"} <= {path.name for path in made}
    assert [path for path in made if path.stat().st_mode & 0o077] == []
    # What an earlier version left open is closed by the next command that writes.
    (folder / "millrace.db").chmod(0o644)
    assert millrace(folder, "credit", "add", "1.00").exit_code == 0
    assert (folder / "millrace.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("words", ["key list", "key revoke x", "requests", "balance", "nodes"])
@pytest.mark.parametrize("there", [False, True])
def test_looking_makes_neither_folder_nor_ledger(tmp_path: Path, words: str, there: bool) -> None:
    folder = tmp_path / "data"
    if there:
        folder.mkdir()
    refused = millrace(folder, *words.split())
    assert refused.exit_code in (1, 3)
    assert refused.stderr.count("\n") == 1
    assert str(folder) in refused.stderr
    assert folder.exists() == there
    assert not there or list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("in the way")
    for folder in ("/proc/x", str(tmp_path)):
        done = complete_command("join", "127.0.0.1", "--token", "t", "--data-dir", folder)
        assert done.returncode == 1
        assert next(line for line in done.stderr.splitlines() if not line.startswith("{")).startswith("error: ")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("box", ("box", DEFAULT_PORT)),
        ("10.0.0.1:9", ("10.0.0.1", 9)),
        ("::1", ("::1", DEFAULT_PORT)),
        ("[::1]", ("::1", DEFAULT_PORT)),
        ("[fe80::1%eth0]:9000", ("fe80::1%eth0", 9000)),
    ],
)
def test_where_a_gateway_is_can_be_said_in_each_usual_way(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("box", None, "mrj.t"), ("box", "mrj.t")),
        (("mrj.t", None, ""), (None, "mrj.t")),
        (("mrj.t", "box:9", ""), ("box:9", "mrj.t")),
        (("-", "box", ""), ("box", "-")),
        ((None, None, ""), (None, "")),
    ],
)
def test_a_join_token_alone_is_enough(
    given: tuple[str | None, str | None, str], expected: tuple[str | None, str]
) -> None:
    assert where_and_token(*given) == expected


@pytest.mark.parametrize("given", [("mrj.a", None, "mrj.b"), ("box", "other", "")])
def test_two_answers_to_one_question_are_refused(given: tuple[str, str | None, str]) -> None:
    with pytest.raises(typer.Exit):
        where_and_token(*given)


@pytest.mark.parametrize("text", ["", ":1", "box:", "box:0", "box:65536", "box:\u00b2", "[::1", "[]", "[::1]x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(typer.Exit):
        split_address(text)
