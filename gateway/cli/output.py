"""How commands speak: data on stdout, talk on stderr, one exit code for each kind of end."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.table import Table

FAILED = 1
UNREACHABLE = 3
REFUSED = 4

_PIPED_WIDTH = 240

talk = Console(stderr=True, soft_wrap=True)


def data(value: Any) -> None:
    """One line of JSON on stdout, at once."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool) -> None:
    """Rows for people, or as a JSON list of objects."""
    if as_json:
        data([dict(zip(columns, row, strict=True)) for row in rows])
        return
    console = Console()
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(shown)


def fail(message: str, code: int = FAILED) -> NoReturn:
    talk.print(f"[bold red]error:[/] {message}", highlight=False)
    raise typer.Exit(code)
