"""Docs cannot lag: every setting, command and metric is written down, and nothing that is gone still is."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from gateway.cli.main import app
from gateway.observability.metrics import Metrics
from gateway.settings import variables

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def commands(group: Any, prefix: str = "millrace") -> Iterator[tuple[str, str]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command.help or ""


def test_every_setting_is_documented_as_it_is() -> None:
    written = dict(re.findall(r"^\| `(MILLRACE_\w+)` \| (.*) \|$", OPERATIONS, re.MULTILINE))
    assert written == dict(variables())


def test_every_command_is_documented_with_an_example() -> None:
    found = dict(commands(typer.main.get_command(app)))
    written = set(re.findall(r"`(millrace [a-z ]+)`", OPERATIONS.split("## More machines")[0]))
    assert written == set(found)
    for name, text in found.items():
        assert f"Example: {name}" in text, name


def test_every_metric_is_documented() -> None:
    instruments = Metrics.create().instruments
    names = {each.name + ("_total" if each.kind == "counter" else "") for each in instruments}
    assert set(re.findall(r"^\| `(millrace_\w+)` \|", OPERATIONS, re.MULTILINE)) == names


def test_no_path_of_a_machine_is_in_the_docs() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("demo/**/*.md")]:
        assert "/work/" not in page.read_text(), page
        assert "/root/" not in page.read_text(), page
