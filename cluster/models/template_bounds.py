"""Limits for a chat template, which comes with a model's files and is foreign code in this process.

Every turn of a loop and every call of a macro is a step. Steps, seconds and the size of texts are limited.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

STEPS_MAX = 2_000_000
SECONDS_MAX = 10.0
TEXT_MAX = 64 * 2**20
"""Characters of any text that a template makes; the longest prompts have some ten million."""
NUMBER_MAX = 2**63

_WIDTH_MAX = 1_000_000
_STEPS_A_LOOK = 1_000
_LONG_PERCENT = re.compile(r"%[-+ #0-9.]*(\d{7}|\*)")
_LONG_BRACES = re.compile(r"\d{7}|\{[^}]*\{")
_WIDE = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "wordwrap", "indent", "tojson"))


class TemplateBeyondBounds(TemplateError):
    """A template takes too many steps, takes too long, or makes too long a text."""


class _Spent(threading.local):
    steps = 0
    until_s = 0.0


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox with limits. A thread runs one template at a time."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._spent = _Spent()
        self.filters |= {name: _narrow(self.filters[name]) for name in ("center", "wordwrap", "indent")}
        for name in ("join", "replace"):
            self.filters[name] = _SHORT[name]

    def bounded(self, template: nodes.Template) -> nodes.Template:
        """Return the template with a step in each loop and macro."""
        found: nodes.Template = _Stepping().visit(template)
        found.set_environment(self)
        return found

    def joined(self, pieces: Iterable[str]) -> str:
        """Return a template's whole output, checked while it arrives. Raise TemplateBeyondBounds."""
        self._spent.steps, self._spent.until_s = 0, time.monotonic() + SECONDS_MAX
        kept, size = [], 0
        for piece in pieces:
            size += len(piece)
            _check_size(size)
            kept.append(piece)
        return "".join(kept)

    def step(self) -> str:
        """Count a step. Raise TemplateBeyondBounds after too many steps or seconds."""
        spent = self._spent
        spent.steps += 1
        if spent.steps > STEPS_MAX:
            raise TemplateBeyondBounds(f"it takes more than {STEPS_MAX} steps")
        if spent.steps % _STEPS_A_LOOK == 0 and time.monotonic() > spent.until_s:
            raise TemplateBeyondBounds(f"it takes longer than {SECONDS_MAX:.0f} s")
        return ""

    def concatenated(self, *values: Any) -> str:
        """Return the joined texts. Raise TemplateBeyondBounds if they are too long."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator. Raise TemplateBeyondBounds if it would be too large."""
        match operator:
            case "*":
                _check_size(_length(left) * _count(right), _length(right) * _count(left))
            case "+":
                _check_size(_length(left) + _length(right))
            case "**" if _count(left).bit_length() * _count(right) > NUMBER_MAX.bit_length():
                raise TemplateBeyondBounds("it raises to too high a power")
            case "%" if isinstance(left, str) and _LONG_PERCENT.search(left):
                raise TemplateBeyondBounds("it formats too wide a text")
        found = super().call_binop(context, operator, left, right)
        if isinstance(found, int) and abs(found) > NUMBER_MAX:
            raise TemplateBeyondBounds("its numbers grow too large")
        return found

    def call(self, context: Any, called: Any, /, *arguments: Any, **named: Any) -> Any:
        """Return the result of a call. Raise TemplateBeyondBounds if its text would be too large."""
        text = getattr(called, "__self__", None)
        if text is self:  # A call that `bounded` has put into the template.
            return called(*arguments)
        if isinstance(text, str):
            name = getattr(called, "__name__", "")
            if name in _WIDE:
                _check_widths(*arguments, *named.values())
            elif name in _SHORT:
                return _SHORT[name](*((list(*arguments), text) if name == "join" else (text, *arguments)))
            elif name in ("format", "format_map") and _LONG_BRACES.search(text):
                raise TemplateBeyondBounds("it formats too wide a text")
        return super().call(context, called, *arguments, **named)


class _Stepping(NodeTransformer):
    """Puts a step at the beginning of each loop and macro body, and joins texts within the limits."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja's own way
        node.body.insert(0, _call("step", node.lineno))
        self.generic_visit(node)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802 - jinja's own way
        node.body.insert(0, _call("step", node.lineno))
        self.generic_visit(node)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802 - jinja's own way
        self.generic_visit(node)
        return nodes.Call(
            nodes.EnvironmentAttribute("concatenated"), node.nodes, [], None, None, lineno=node.lineno
        )


def _call(name: str, line: int) -> nodes.ExprStmt:
    called = nodes.Call(nodes.EnvironmentAttribute(name), [], [], None, None, lineno=line)
    return nodes.ExprStmt(called, lineno=line)


def _short_replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    whole, old, new = str(text), str(old), str(new)
    limit = -1 if count is None else count
    times = whole.count(old) if limit < 0 else min(limit, whole.count(old))
    _check_size(len(whole) + times * len(new))
    return whole.replace(old, new, limit)


def _short_join(values: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    found = list(values)
    if attribute is not None:
        found = [value.get(attribute, "") if isinstance(value, dict) else "" for value in found]
    texts = [str(value) for value in found]
    _check_size(sum(map(len, texts)) + len(texts) * len(d))
    return d.join(texts)


_SHORT: dict[str, Callable[..., str]] = {"join": _short_join, "replace": _short_replace}


def _narrow(made: Callable[..., Any]) -> Callable[..., Any]:
    def narrow(value: Any, *arguments: Any, **named: Any) -> Any:
        _check_widths(*arguments, *named.values())
        return made(value, *arguments, **named)

    return narrow


def _check_widths(*values: Any) -> None:
    if any(isinstance(value, int) and value > _WIDTH_MAX for value in values):
        raise TemplateBeyondBounds("it makes too wide a text")


def _check_size(*sizes: int) -> None:
    if max(sizes) > TEXT_MAX:
        raise TemplateBeyondBounds(f"it makes a text of more than {TEXT_MAX} characters")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _count(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0
