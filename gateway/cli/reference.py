"""The command line as a page of documentation: `python -m gateway.cli.reference > docs/commands.md`."""

import re
import textwrap
from collections.abc import Iterator
from typing import Any, get_args

import typer

_HEAD = """# Commands

Every command, as shown by `millrace COMMAND --help`. `python -m gateway.cli.reference` generates this page,
and a test compares it.

Data goes to stdout, messages and progress to stderr. With `--json`, stdout has one line of JSON, or one line per
event. Commands print no color if stdout is not a terminal, or if `NO_COLOR` is set. Secrets are read from a
prompt, a file, stdin or the environment. The only exception is a join token, which is single-use and expires
after 15 minutes. Every command except `millrace version` takes `--data-dir`, the data directory.
`millrace --install-completion` also completes models, keys and machines.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | failed: the last line has the error, its reason and the remedy |
| 2 | wrong usage, or an invalid setting |
| 3 | no gateway or marketplace was reached |
| 4 | rejected by a rule, a role, a balance or the user |
"""

_COLUMNS = 120
_EVERYWHERE = ("help", "data_dir", "as_json")
_EXAMPLE = re.compile(r"\s*Example: (?P<example>millrace .+)\Z")


def commands(command: Any, path: tuple[str, ...] = ("millrace",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its words, in the order of the tree."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from commands(each, (*path, name))


def page(app: typer.Typer) -> str:
    parts = [_HEAD]
    for path, command in commands(typer.main.get_command(app)):
        parts.append("\n".join(_section(path, command)))
    return "\n".join(parts)


def _section(path: tuple[str, ...], command: Any) -> Iterator[str]:
    shown = [each for each in command.params if each.name not in _EVERYWHERE and not each.hidden]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    words = " ".join([*path, *(_metavar(each) for each in arguments), "[options]"])
    text = " ".join((command.help or "").split())
    found = _EXAMPLE.search(text)
    yield f"## `{words}`\n"
    summary = text[: found.start()] if found else text
    yield textwrap.fill(summary, _COLUMNS, break_long_words=False, break_on_hyphens=False) + "\n"
    if found:
        yield f"    {found['example']}\n"
    if shown:
        yield "| parameter | meaning | default |\n|---|---|---|"
        for each in (*arguments, *options):
            yield f"| {_name(each)} | {_cell(getattr(each, 'help', '') or '')} | {_default(each)} |"
        yield ""


def _metavar(argument: Any) -> str:
    if argument.metavar:
        return str(argument.metavar)
    name = argument.name.upper()
    several = "..." if argument.nargs != 1 else ""
    return f"{name}{several}" if argument.required else f"[{name}]{several}"


def _name(each: Any) -> str:
    if each.param_type_name == "argument":
        return f"`{_cell(_metavar(each))}`"
    spelled = ", ".join(f"`{word}`" for word in (*each.opts, *each.secondary_opts))
    choices = get_args(each.type_descriptor.annotation)
    if not choices or not all(isinstance(choice, str) for choice in choices):
        return spelled
    return f"{spelled} {' or '.join(f'`{choice}`' for choice in choices)}"


def _default(each: Any) -> str:
    if each.required:
        return "required"
    shown = getattr(each, "show_default", True)
    if isinstance(shown, str):
        return shown
    default = each.default
    if shown is False or callable(default) or default is None or default is False or default in ("", (), []):
        return ""
    return f"`{default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    from gateway.cli.main import app

    typer.echo(page(app), nl=False)
