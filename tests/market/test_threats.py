"""What docs/market-threats.md names as shown by a test is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def test_every_threat_has_its_tests_and_they_are_there() -> None:
    rows = ROW.findall((ROOT / "docs" / "market-threats.md").read_text())
    assert [int(number) for number, _ in rows] == list(range(1, 44))
    for number, shown_by in rows:
        names = re.findall(r"`(tests/[^`]+)`", shown_by)
        assert names, number
        for name in names:
            path, _, test = name.partition("::")
            assert (ROOT / path).exists(), name
            assert not test or f"def {test}(" in (ROOT / path).read_text(), name


def test_no_defence_is_shown_by_code_that_no_gateway_runs() -> None:
    unused = modules_that_no_gateway_reaches()
    assert unused == set()
    for name in re.findall(r"`(tests/[^`]+)::([^`]+)`", (ROOT / "docs" / "market-threats.md").read_text()):
        tree = ast.parse((ROOT / name[0]).read_text())
        idle = {alias.name for node in imports_of(tree) if node.module in unused for alias in node.names}
        test = next(node for node in ast.walk(tree) if getattr(node, "name", "") == name[1])
        used = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        assert not idle & used, name


def modules_that_no_gateway_reaches() -> set[str]:
    """Of the market's: those that no module of the gateway imports, nor what it imports."""
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for package in ("accounting", "gateway", "market")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    # A gateway starts the market's programs as processes.
    reached, ahead = (
        set[str](),
        {name for name in sources if name.startswith("gateway.") or name.endswith(".__main__")},
    )
    while ahead:
        reached |= ahead
        found = {module for name in ahead for module in imported_by(sources[name])}
        ahead = (found & sources.keys()) - reached
    return {name for name in sources if name.startswith("market.")} - reached


def imported_by(path: Path) -> Iterator[str]:
    for node in imports_of(ast.parse(path.read_text())):
        yield from (str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names))


def imports_of(tree: ast.AST) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
