"""Find public functions whose docstring lacks an error, a unit or a shape."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef

UNIT_IN_NAME = re.compile(
    r"(^|_)(s|ms|us|ns|seconds|minutes|hours|days|bits|bytes|kib|mib|gib|nano|usd|micro|nats|tokens|layers|share"
    r"|ratio|factor|weight|percent|hz|watts|flops|px)(_(max|min|by_[a-z]+))?$|_per_[a-z]+$|^(temperature|top_p)$"
)
UNIT = re.compile(
    r"\b((milli|micro|nano)?seconds?|ms|ns|minutes?|hours?|days?|bits|bytes|[KMG]iB|GB|nano|USD|cents|tokens|layers"
    r"|rows|pairs|requests|machines|connections|shares?|ratios?|factors?|weights|probability|percent|nats|hertz|watts"
    r"|FLOPs?|pixels?|units?|0 to 1|times as)\b|\d s\b|%|\bper (token|layer|second)\b"
)
QUANTITY = re.compile(
    r"(^|_)(amount|age|balance|bandwidth|budget|cost|delay|deadline|duration|fee|interval|latency|length"
    r"|memory|period|price|size|speed|timeout|wait)$"
)
"""Integers of these names need a unit; other integers count things."""
SHAPE = re.compile(r"\[[^\]]+\]|\bscalar\b|\bshapes?\b", re.IGNORECASE)
BUGS = {"AssertionError", "NotImplementedError"}
"""No caller handles these: they tell of a mistake in the code."""
HELPERS = "Raise"
"""A docstring needs this word if a helper makes the error, so that its class is not in the `raise`."""
KINDS = ("what is raised", "units", "shapes")


@dataclass(slots=True)
class Docstrings:
    """By kind of statement: how many docstrings need it, and the functions that lack it, as lines of text."""

    needed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    lacking: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def percent(self, kind: str) -> int:
        """Return the share of docstrings that say what they need to, in whole percent, rounded down."""
        needed = self.needed[kind]
        return 100 * (needed - len(self.lacking[kind])) // needed if needed else 100


def examine(trees: Mapping[Path, ast.Module]) -> Docstrings:
    """Read the docstrings of all public functions, methods and properties.

    A method may leave statements to the method that it overrides, and special methods to their class.
    """
    result = Docstrings()
    statements = [(path, node) for path, tree in trees.items() for node in tree.body]
    classes = [(path, node) for path, node in statements if isinstance(node, ast.ClassDef)]
    texts = {(each.name, method.name): _text(method) for _, each in classes for method in _functions(each)}
    for path, tree in trees.items():
        for function in _functions(tree):
            _examine(result, function, _text(function), f"{path}:{function.lineno} {function.name}")
    for path, each in classes:
        for method in _functions(each) if not each.name.startswith("_") else ():
            bases = [texts.get((ast.unparse(base), method.name), "") for base in each.bases]
            own = _text(each) if method.name.startswith("__") else ""
            text = "\n".join((_text(method), own, *bases))
            _examine(result, method, text, f"{path}:{method.lineno} {each.name}.{method.name}")
    return result


def _functions(node: ast.Module | ast.ClassDef) -> Iterator[Function]:
    for each in node.body:
        if isinstance(each, Function) and (not each.name.startswith("_") or each.name.endswith("__")):
            yield each


def _text(node: Function | ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def _examine(result: Docstrings, function: Function, text: str, place: str) -> None:
    types = _types(function)
    raised = {name for each in function.body for name in _raised(each, frozenset())}
    units = [name for name, kind in types.items() if _needs_unit(name, kind)]
    tensors = [name for name, kind in types.items() if re.search(r"\b(Tensor|NDArray|ndarray)\b", kind)]
    without_unit = [name for name in units if not UNIT_IN_NAME.search(name)]
    unnamed = [name for name in raised if not re.search(rf"\b{name}s?\b", text, re.IGNORECASE * (name == HELPERS))]
    for kind, needs, lacks in (
        ("what is raised", raised, unnamed),
        ("units", units, [] if UNIT.search(text) else without_unit),
        ("shapes", tensors, [] if SHAPE.search(text) else tensors),
    ):
        result.needed[kind] += bool(needs)
        if lacks:
            result.lacking[kind].append(f"{place}: {kind}: {', '.join(sorted(lacks))}")


def _types(function: Function) -> dict[str, str]:
    """Annotations by parameter, and that of the result by the function's own name."""
    parameters = [node for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    found = {each.arg: ast.unparse(each.annotation) for each in parameters if each.annotation}
    return found | ({function.name: ast.unparse(function.returns)} if function.returns else {})


def _needs_unit(name: str, kind: str) -> bool:
    return bool(re.search(r"\bfloat\b", kind) or (re.match(r"int\b", kind) and QUANTITY.search(name)))


def _raised(node: ast.AST, caught: frozenset[str]) -> Iterator[str]:
    """Errors that a function raises itself and does not catch; HELPERS stands for one that a helper makes."""
    if isinstance(node, Function | ast.ClassDef | ast.Lambda):
        return
    if isinstance(node, ast.Raise) and node.exc and (name := _error(node.exc)) not in caught | BUGS:
        yield name if name[0].isupper() else HELPERS
    body, handlers = (node.body, node.handlers) if isinstance(node, ast.Try) else ([], [])
    for child in ast.iter_child_nodes(node):
        held = {name for handler in handlers if child in body for name in _caught(handler)}
        if isinstance(node, ast.ExceptHandler) and node.name:
            held.add(node.name)
        yield from _raised(child, caught | held)


def _error(node: ast.expr) -> str:
    """Class of `Invalid(...)`, `errors.Invalid`, `Invalid.of_size(...)` or `Invalid(...).quoting(...)`."""
    names = [part.id if isinstance(part, ast.Name) else part.attr for part in _chain(node)]
    return next((name for name in names if name[0].isupper()), names[-1] if names else "raises")


def _chain(node: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    while isinstance(node, ast.Call | ast.Attribute | ast.Name):
        if not isinstance(node, ast.Call):
            yield node
        if isinstance(node, ast.Name):
            return
        node = node.func if isinstance(node, ast.Call) else node.value


def _caught(handler: ast.ExceptHandler) -> set[str]:
    return set(re.findall(r"\w+", ast.unparse(handler.type))) if handler.type else set()
