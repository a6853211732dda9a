"""What docs/market-threats.md names as shown by a test is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def test_every_threat_has_its_tests_and_they_are_there() -> None:
    rows = ROW.findall((ROOT / "docs" / "market-threats.md").read_text())
    assert [int(number) for number, _ in rows] == list(range(1, 42))
    for number, shown_by in rows:
        names = re.findall(r"`(tests/[^`]+)`", shown_by)
        assert names, number
        for name in names:
            path, _, test = name.partition("::")
            assert (ROOT / path).exists(), name
            assert not test or f"def {test}(" in (ROOT / path).read_text(), name


def test_no_defence_is_shown_by_code_that_no_gateway_runs() -> None:
    unused = set(modules_that_nothing_imports())
    assert {"market.auditing.reputation", "market.auditing.speed"} <= unused, "connected: say so in docs/market.md"
    for name in re.findall(r"`(tests/[^`]+)::([^`]+)`", (ROOT / "docs" / "market-threats.md").read_text()):
        tree = ast.parse((ROOT / name[0]).read_text())
        idle = {alias.name for node in imports_of(tree) if node.module in unused for alias in node.names}
        test = next(node for node in ast.walk(tree) if getattr(node, "name", "") == name[1])
        used = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        assert not idle & used, name


def modules_that_nothing_imports() -> Iterator[str]:
    """Of the market's, by the sources of the packages."""
    sources = [path for package in ("accounting", "gateway", "market") for path in (ROOT / package).rglob("*.py")]
    imported = {node.module for path in sources for node in imports_of(ast.parse(path.read_text()))}
    for path in (ROOT / "market").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.name != "__init__.py" and module not in imported:
            yield module


def imports_of(tree: ast.AST) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
