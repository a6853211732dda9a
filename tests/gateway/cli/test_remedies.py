"""What errors and pages of the product tell users to do can be done as it is written."""

import ast
import functools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperGroup

from gateway.cli.main import app
from gateway.settings import variables

ROOT = Path(__file__).parents[3]
PACKAGES = ("accounting", "cluster", "gateway", "market")
COMMANDS = typer.main.get_command(app)
_QUOTED = re.compile(r"(?:`|<code>)(millrace [^`<\n]+)(?:`|</code>)")
_MENTIONED = re.compile(r"\bmillrace((?: [a-z][a-z-]*)+)")
_INSTALLED = re.compile(r"\bpip install ((?:'[^']+'|\S+)(?: '[^']+')*)")
# As `section.name`.
_SETTING = re.compile(r"(?<![\w./:-])([a-z_]+\.[a-z_]+)(?![\w/(.])")
# Writes docs/commands.md, with placeholders.
_PAGE = "gateway/cli/reference.py"
_FILES = (".db", ".json", ".jsonl", ".key", ".keys", ".lock", ".md", ".py", ".sock", ".toml", ".txt")


@functools.cache
def said() -> tuple[tuple[str, str], ...]:
    """Each text of the product with its place, docstrings apart; VALUE stands for what is filled in.

    It parses every module, which takes seconds: all tests of this file share one reading.
    """
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            yield from ((place, text) for text in _texts_of(ast.parse(path.read_text())))
        for path in sorted((ROOT / package).rglob("*.html")):
            text = re.sub(r"\{\{.*?\}\}", "VALUE", re.sub(r'" ~ .*? ~ "', "VALUE", path.read_text()))
            yield path.relative_to(ROOT).as_posix(), text


def _texts_of(module: ast.Module) -> Iterator[str]:
    """Yield each text of a module.

    A text that stands alone is a docstring: its example is run, the rest is read by `--help` alone.
    """
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                examples = re.findall(r"Example: (millrace .*)$", text, re.MULTILINE)
                yield from (f"`{example}`" for example in examples)
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in parts)
            case _:
                waiting.extend(ast.iter_child_nodes(node))


def refusal(line: str) -> str | None:
    """What the real command line says against it."""
    command, words = COMMANDS, shlex.split(line)[1:]
    context = command.context_class(command, info_name="millrace")
    try:
        while isinstance(command, TyperGroup) and words:
            name, *words = words
            found = command.get_command(context, name)
            if found is None:
                return f"there is no command {name!r}"
            context = found.context_class(found, info_name=name, parent=context)
            command = found
        if isinstance(command, TyperGroup) and not command.invoke_without_command:
            return "needs a further command"
        command.parse_args(context, words)
    except UsageError as error:
        return error.format_message()
    return None


def test_every_command_that_is_told_runs_as_it_is_written() -> None:
    told = {line: place for place, text in said() if place != _PAGE for line in _QUOTED.findall(text)}
    assert len(told) > 100
    assert {(told[line], line): why for line in told if (why := refusal(line))} == {}


def test_every_command_that_is_mentioned_is_one() -> None:
    assert isinstance(COMMANDS, TyperGroup)
    unknown = set()
    for place, text in said():
        for words in _MENTIONED.findall(_QUOTED.sub("", text)):
            first, *rest = words.split()
            group = COMMANDS.commands.get(first)
            if group is None or (isinstance(group, TyperGroup) and (not rest or rest[0] not in group.commands)):
                unknown.add((place, words.strip()))
    # "share/millrace by default" is a folder.
    assert unknown == {("gateway/settings/__init__.py", "by default")}


def test_every_extra_that_is_told_is_installed_from_an_index() -> None:
    """Millrace itself is on none, so an error names the packages, as pyproject.toml asks for them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = {place: shlex.split(words) for place, text in said() for words in _INSTALLED.findall(text)}
    assert told == {
        "cluster/compute/compat_build.py": extras["compat"],
        "gateway/telemetry/factory.py": extras["otel"],
    }


def test_every_extra_of_the_documentation_is_one_of_a_folder_or_a_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = set()
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        for source, extras in re.findall(r"([\w./-]+)\[((?:node|compat|otel|dev)[a-z,]*)\]", page.read_text()):
            told.add(source)
            assert set(extras.split(",")) <= set(project["optional-dependencies"]), page
    assert told == {".", f"./{project['name']}-{project['version']}-py3-none-any.whl"}


def test_every_setting_and_file_that_is_told_is_there() -> None:
    names = {name.removeprefix("MILLRACE_").lower().replace("__", ".") for name, _, _ in variables()}
    sections = {name.partition(".")[0] for name in names}
    texts = [(place, text) for place, text in said() if " " in text and place.endswith(".py")]
    settings = {(place, name) for place, text in texts for name in _SETTING.findall(text)}
    settings = {(place, name) for place, name in settings if name.partition(".")[0] in sections}
    assert len(settings) > 30
    assert {each for each in settings if each[1] not in names and not each[1].endswith(_FILES)} == set()
    files = {(place, file) for place, text in texts for file in re.findall(r"\b(?:docs|deploy)/[\w./-]+\w", text)}
    assert {each for each in files if not (ROOT / each[1]).exists()} == set()
