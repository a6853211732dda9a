"""No pattern of ours ends in `$`, which Python also matches before a final newline: "ab\\n" would pass for "ab".

pydantic uses another engine, for which `$` is the end of the text.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError

PACKAGES = ("accounting", "cluster", "gateway", "market")
_PARSER = import_module("re._parser")
_AT_THE_END = import_module("re._constants").AT_END
_MAY_HAVE_PATTERNS = re.compile(r"\bre\.|\bMeta\b")


def test_no_pattern_lets_a_final_newline_pass() -> None:
    root = Path(__file__).parents[1]
    files = [path for name in PACKAGES for path in (root / name).rglob("*.py")]
    found = [(path, pattern) for path in sorted(files) for pattern in patterns_of(path)]
    assert len(found) > 80, "the walk finds patterns"
    loose = [f"{path.relative_to(root)}: {pattern!r}" for path, pattern in found if is_loose(pattern)]
    assert loose == [], "use \\Z or fullmatch"


def test_a_pydantic_pattern_ends_at_the_end() -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Annotated[str, Field(pattern="^[0-9a-f]{4}$")]).validate_python("00ff\n")


def patterns_of(path: Path) -> Iterator[str | bytes]:
    """Every pattern that a file gives to `re` or to msgspec, as far as it is written there."""
    source = path.read_text()
    if not _MAY_HAVE_PATTERNS.search(source):  # To parse and walk all files takes seconds.
        return
    tree = ast.parse(source)
    named = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            for node in _given(call):
                text = _text(named.get(node.id, node) if isinstance(node, ast.Name) else node)
                if text is not None:
                    yield text


def _given(call: ast.Call) -> list[ast.expr]:
    what = _name_of(call.func)
    # Only then the whole call: of each call in each module, with all that it is given, that would take seconds.
    if not what.startswith(("re.", "Meta", "msgspec.Meta")) or "MULTILINE" in ast.unparse(call):
        return []
    if what in ("Meta", "msgspec.Meta"):
        return [each.value for each in call.keywords if each.arg == "pattern"]
    return call.args[:1] if re.fullmatch(r"re\.(compile|match|fullmatch|search|sub|split|find\w+)", what) else []


def _name_of(function: ast.expr) -> str:
    """Return a function's name, with its module's; empty if it is found in another way."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return f"{function.value.id}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _text(node: ast.expr) -> str | bytes | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return None


def is_loose(pattern: str | bytes) -> bool:
    parsed = _PARSER.parse(pattern)
    return any(each is _AT_THE_END for each in _leaves(parsed))


def _leaves(parsed: object) -> Iterator[object]:
    parsed = getattr(parsed, "data", parsed)
    if isinstance(parsed, list | tuple):
        for each in parsed:
            yield from _leaves(each)
    else:
        yield parsed
