"""`millrace config`: the settings in force, where each came from, and the path of the settings file."""

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group, Report
from gateway.settings import ENV_PREFIX, FILE_NAME, Settings

app = Group("Settings in force, and where they came from.")

_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_MASK = "**********"


@app.with_settings("show")
def show(
    settings: Settings,
    context: typer.Context,
    section: Annotated[str | None, typer.Argument(help="Only this section, e.g. cluster.")] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from their defaults.")
    ] = False,
) -> Report:
    """Show every setting with its source; secrets are masked. Example: millrace config show cluster"""
    rows = [
        (name, value, source)
        for name, value, source in _rows(settings, context.params["data_dir"])
        if (section is None or name.partition(".")[0] == section) and not (changed and source == "default")
    ]
    if section is not None and section not in Settings.model_fields:
        output.fail(
            f"unknown section {section}; sections are {', '.join(Settings.model_fields)}", output.WRONG_USAGE
        )
    shown = [(name, _short(value), source) for name, value, source in rows]
    facts = {name: {"value": value, "from": source} for name, value, source in rows}
    return Report(facts, lambda _: output.table(("setting", "value", "from"), shown))


def _show_path(facts: dict[str, Any]) -> None:
    typer.echo(facts["file"])
    if not facts["exists"]:
        output.say(f"the file does not exist; settings come from {ENV_PREFIX}* variables and defaults")


@app.with_settings("path", _show_path)
def path(settings: Settings) -> Any:
    """Print the path of the settings file. Example: millrace config path"""
    file = settings.data_dir / FILE_NAME
    return {"file": str(file), "exists": file.is_file(), "data_dir": str(settings.data_dir)}


def _rows(settings: Settings, data_dir: Path | None) -> Iterator[tuple[str, Any, str]]:
    """Yield name, JSON value and source of every setting, in the order of the sections."""
    file = _file(settings.data_dir / FILE_NAME)
    variables = {name.upper() for name in os.environ}
    for name, value in settings.model_dump(mode="json").items():
        inner = value if isinstance(value, dict) else {"": value}
        in_file = file.get(name, {})
        for key, each in inner.items():
            full = f"{name}.{key}" if key else name
            variable = ENV_PREFIX + full.replace(".", "__").upper()
            if not key and data_dir is not None:
                source = "command line"
            elif any(found == variable or found.startswith(f"{variable}__") for found in variables):
                source = "environment"
            elif (key in in_file) if key else (name in file):
                source = "file"
            else:
                source = "default"
            yield full, _masked(each), source


def _file(file: Path) -> dict[str, Any]:
    """Return the file's content; the settings were read from it, so it is readable."""
    try:
        return tomllib.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _masked(value: Any) -> Any:
    """Mask passwords inside URLs; values that are secrets themselves are already masked."""
    if isinstance(value, str):
        return _IN_URL.sub(_MASK, value)
    if isinstance(value, dict):
        return {key: _masked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_masked(each) for each in value]
    return value


def _short(value: Any) -> str:
    import orjson

    return value if isinstance(value, str) else orjson.dumps(value).decode()
