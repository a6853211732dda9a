"""Stripe's form encoding: `line_items[0][price_data][unit_amount]=500` as nested dicts and lists of texts."""

import re
from typing import Any
from urllib.parse import parse_qsl

_PART = re.compile(r"\[([^\]]*)\]")


def decode(body: str) -> dict[str, Any]:
    """Return what a form says; every value is a text."""
    form: dict[str, Any] = {}
    for name, value in parse_qsl(body, keep_blank_values=True):
        first, _, rest = name.partition("[")
        parts = [first, *_PART.findall(f"[{rest}")] if rest else [first]
        _put(form, parts, value)
    listed = _listed(form)
    assert isinstance(listed, dict)
    return listed


def _put(form: dict[str, Any], parts: list[str], value: str) -> None:
    for part in parts[:-1]:
        form = form.setdefault(part, {})
    last = parts[-1] or str(len(form))
    form[last] = value


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: _listed(part) for name, part in value.items()}
    if inner and all(name.isdigit() for name in inner):
        return [inner[name] for name in sorted(inner, key=int)]
    return inner
