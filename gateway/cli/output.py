"""Output of commands: data on stdout, messages on stderr, one exit code for each kind of end."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

FAILED = 1
WRONG_USAGE = 2
UNREACHABLE = 3
REFUSED = 4

_PIPED_WIDTH = 240
_CONTROLS = re.compile("[\x7f-\x9f]")


Cell = str | Callable[[Any], object]
"""What a column shows: a thing's value of this name, or what a function makes of the thing."""


class _Talk(Console):
    def on_broken_pipe(self) -> None:
        """Stop writing: a closed stderr is no reason to abort the command."""
        self.quiet = True


talk = _Talk(stderr=True, soft_wrap=True)


def say(*parts: str | tuple[str, str]) -> None:
    """Print one line on stderr; a part with a style is (text, style). The text itself is not markup."""
    shown = [(plain(part), "") if isinstance(part, str) else (plain(part[0]), part[1]) for part in parts]
    # A full disk behind stderr is no reason to abort, either.
    with contextlib.suppress(OSError):
        talk.print(Text.assemble(*shown))


def data(value: Any) -> None:
    """Print one line of JSON on stdout and flush it."""
    # JSON allows these characters; a terminal would interpret them as commands.
    line = _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", orjson.dumps(value).decode())
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table. A cell with a style is (text, style)."""
    console = Console()
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*map(_cell, row))
    console.print(shown)


def table_of(cells: Mapping[str, Cell], found: Iterable[Any]) -> None:
    """Print things as a table, with a row for each; `cells` has the columns."""
    table(tuple(cells), [[cell(one) if callable(cell) else one[cell] for cell in cells.values()] for one in found])


def as_dicts(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return rows as JSON objects."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _cell(cell: object) -> Text:
    text, style = cell if isinstance(cell, tuple) else (cell, "")
    return Text("" if text is None else plain(str(text)), style)


def more_follow(limit: int, option: str, place: object) -> None:
    """Note that only a part is shown, if there is a next page."""
    if place:
        say(("note:", "bold"), f" only {limit} shown; see more with {option} {place}")


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print an error and end the command: raises typer.Exit with status `code`."""
    complain(message)
    raise typer.Exit(code)


def complain(message: str) -> None:
    """Print an error."""
    say(("error:", "bold red"), f" {message}")


def plain(text: str) -> str:
    """Remove characters from untrusted text that a terminal would interpret or cannot show."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)
