"""Rules that hold for every command there is, and the page that has them all."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli import output
from gateway.cli.main import app
from gateway.cli.reference import commands, page

COMMANDS = dict(commands(typer.main.get_command(app)))
ROOT = Path(__file__).parents[3]
# It works once, for 15 minutes, and users copy it with the whole command.
_SHOWN_SECRETS = {("millrace", "join", "token")}
_SECRET = re.compile(r"(^|_)(secret|password|token|api_key)$")
_ESCAPE = "\x1b["


def options(command: Any) -> dict[str, Any]:
    return {option.name: option for option in command.params if option.param_type_name == "option"}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_keeps_the_rules(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    found = options(command)
    assert "--json" in found["as_json"].opts
    assert "data_dir" in found or path == ("millrace", "version")
    text = " ".join((command.help or "").split())
    assert re.search(rf"Example: {' '.join(path)}\b[^.]*", text), "its help ends with an example"
    assert text.index("Example: ") > 0
    assert all(each.help for each in command.params if each.name != "help"), "each option says what it is"
    for name, option in found.items():
        if _SECRET.search(name) and not option.is_flag and (*path, name) not in _SHOWN_SECRETS:
            # Whoever lists processes, or the shell's history, would read it.
            raise AssertionError(f"--{name} has a secret on the command line")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_what_makes_no_sense_is_wrong_usage_in_words_without_colour(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*path[1:], "--no-such-option"])
    assert done.exit_code == output.WRONG_USAGE
    assert "--no-such-option" in done.stderr
    assert _ESCAPE not in done.stderr
    assert done.stdout == ""


def test_the_page_of_commands_is_the_commands() -> None:
    written = (ROOT / "docs" / "commands.md").read_text()
    assert written == page(app), "python -m gateway.cli.reference > docs/commands.md"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("nodes", output.UNREACHABLE),
        ("ps", output.UNREACHABLE),
        ("run a/b", output.UNREACHABLE),
        ("stop m", output.UNREACHABLE),
        ("chat m", output.UNREACHABLE),
        ("bench m", output.UNREACHABLE),
        ("offers", output.UNREACHABLE),
        ("topup 5", output.UNREACHABLE),
        ("bench m --concurrency 0", output.WRONG_USAGE),
        ("bench m --concurrency 1,x", output.WRONG_USAGE),
        ("pull nothing", output.WRONG_USAGE),
        ("config show nothing", output.WRONG_USAGE),
        ("earnings", output.WRONG_USAGE),
        ("payout 5 --onboard", output.WRONG_USAGE),
        ("advise nothing", output.FAILED),
        ("advise nothing --precision int2", output.WRONG_USAGE),
        ("rm a/b", output.FAILED),
        ("leave", output.FAILED),
        ("statement", output.FAILED),
    ],
)
def test_errors_are_one_line_that_names_the_remedy(words: str, code: int, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*words.split(), "--data-dir", str(tmp_path / "data")])
    assert done.exit_code == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert done.stdout == ""
    assert not (tmp_path / "data").exists()


def test_no_colour_where_it_is_not_wanted(tmp_path: Path) -> None:
    """A terminal gets some, and none with NO_COLOR; a pipe never does."""
    code = "from gateway.cli import output; output.say(('word', 'bold red')); output.fail('why')"
    with_colour = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for more, expected in ((with_colour, True), (with_colour | {"NO_COLOR": "1"}, False), ({}, False)):
        environment = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (
            re.search(r"\x1b\[[0-9;]*3[0-9]", done.stderr) is not None if expected else "\x1b[3" not in done.stderr
        )
        assert done.returncode == output.FAILED
