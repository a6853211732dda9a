"""Every field of a request's state is written by the one module that its text names."""

import ast
import re
from pathlib import Path

import gateway
from gateway.requests.context import RequestContext

PRODUCT = Path(gateway.__file__).parent
CONTEXT = PRODUCT / "requests" / "context.py"


def stated_writers() -> dict[str, str]:
    """The module that each field's text names."""
    (state,) = (
        node
        for node in ast.parse(CONTEXT.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "RequestContext"
    )
    writers: dict[str, str] = {}
    for field, text in zip(state.body, state.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), field.target.id
            found = re.search(r"Written by (gateway[\w.]+)\.$", str(ast.literal_eval(text.value)))
            assert found, field.target.id
            writers[field.target.id] = found[1]
    return writers


def written_fields(tree: ast.AST) -> set[str]:
    """The fields of a `context` that some code assigns."""
    targets: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets.append(node.target)
    targets += [each for target in targets if isinstance(target, ast.Tuple) for each in target.elts]
    return {
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) in ("context", "self._context")
    }


def test_each_field_has_the_one_writer_that_it_names() -> None:
    stated = stated_writers()
    assert tuple(stated) == RequestContext.__struct_fields__
    found: dict[str, set[str]] = {}
    for path in PRODUCT.rglob("*.py"):
        source = path.read_text()
        if "context." not in source:  # To parse and walk all files takes seconds.
            continue
        module = ".".join(("gateway", *path.relative_to(PRODUCT).with_suffix("").parts))
        for name in written_fields(ast.parse(source)) & stated.keys():
            found.setdefault(name, set()).add(module)
    given = {name for name, module in stated.items() if module == "gateway.requests.context"}
    assert found == {name: {module} for name, module in stated.items() if name not in given}
