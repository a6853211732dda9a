"""Check that each folder's `__init__.py` lists its modules: `python .ci/folders.py`; with `--fix`, add what lacks.

The list stands below a line `Modules:`. Each of its lines has a module or a folder, two spaces, and what it is.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("accounting", "cluster", "gateway", "market", "runtime")
_HEAD = "Modules:"
_LINE = re.compile(r"^    (?:([a-z_]\w*)(?:  .*)?|  .*|.*:)$")
_COLUMNS = 120


def main() -> None:
    """Print what lacks or is gone, and exit with 1 if there is any."""
    found = [f"{path.relative_to(ROOT)}: {what}" for path in _folders() for what in differences(path)]
    if "--fix" in sys.argv:
        for path in _folders():
            _fix(path)
    elif found:
        sys.exit("\n".join([*found, "Run `python .ci/folders.py --fix`."]))


def differences(path: Path) -> Iterator[str]:
    """Yield how the list in an `__init__.py` differs from its folder."""
    listed, there = set(_listed(_docstring(path))), _children(path)
    yield from (f"{name} is not in the list of modules" for name in sorted(there.keys() - listed))
    yield from (
        f"{name} is in the list of modules and not in the folder" for name in sorted(listed - there.keys())
    )


def _folders() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("__init__.py"))


def _children(path: Path) -> dict[str, Path]:
    modules = {child.stem: child for child in path.parent.glob("*.py") if child.name != "__init__.py"}
    return modules | {child.parent.name: child for child in path.parent.glob("*/__init__.py")}


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def _listed(docstring: str) -> Iterator[str]:
    for line in docstring.partition(f"\n{_HEAD}\n")[2].splitlines():
        if (match := _LINE.match(line)) and match[1]:
            yield match[1]


def _fix(path: Path) -> None:
    text, docstring, there = path.read_text(), _docstring(path), _children(path)
    if not there or not any(differences(path)):
        return
    head, _, lines = docstring.partition(f"\n{_HEAD}\n")
    kept: dict[str, list[str]] = {}
    for line in lines.splitlines():
        if (match := _LINE.match(line)) and match[1]:
            kept[match[1]] = [line]
        elif kept and line.strip():
            kept[next(reversed(kept))].append(line)
    width = max(len(name) for name in there) + 2
    rows = [row for name in sorted(there) for row in kept.get(name) or _row(name, width, there[name])]
    made = '"""' + head.strip() + f"\n\n{_HEAD}\n" + "\n".join(rows) + '\n"""\n'
    body = text
    tree = ast.parse(text)
    if docstring:
        body = "".join(text.splitlines(keepends=True)[tree.body[0].end_lineno :])
    path.write_text(made + body)


def _row(name: str, width: int, path: Path) -> list[str]:
    said = " ".join(_docstring(path).partition("\n\n")[0].split()).partition(". ")[0].rstrip(".:")
    filled = textwrap.wrap(said, _COLUMNS - width - 4) or [""]
    return [f"    {name:<{width}}{filled[0]}".rstrip(), *(f"    {'':<{width}}{more}" for more in filled[1:])]


if __name__ == "__main__":
    main()
