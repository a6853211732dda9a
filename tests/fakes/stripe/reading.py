"""What calls that change nothing answer: one object, a page of a list, with what is asked to be expanded."""

import copy
from typing import Any

from tests.fakes.stripe.errors import invalid
from tests.fakes.stripe.state import Object, State

_PAGE_MAX = 100
_HIDDEN = ("intent_data", "declines", "processes")


def page(state: State, kind: str, form: Object, owner: str | None, url: str) -> Object:
    """Answer a list call: newest first, `limit` a page, filtered by what stands on the objects."""
    limit = int(form.get("limit", "10"))
    if not 1 <= limit <= _PAGE_MAX:
        raise invalid(f"limit must be from 1 to {_PAGE_MAX}", "parameter_invalid_integer", "limit")
    found = [listed for listed in state.all(kind, owner) if _matches(listed, form)]
    if after := form.get("starting_after"):
        ids = [listed["id"] for listed in found]
        found = found[ids.index(after) + 1 :] if after in ids else []
    return {"object": "list", "url": url, "data": found[:limit], "has_more": len(found) > limit}


def _matches(listed: Object, form: Object) -> bool:
    created = form.get("created", {})
    if not isinstance(created, dict):
        created = {"gte": created, "lte": created}
    if listed["created"] < int(created.get("gte", 0)) or listed["created"] > int(created.get("lte", 2**60)):
        return False
    if listed["created"] <= int(created.get("gt", -1)) or listed["created"] >= int(created.get("lt", 2**61)):
        return False
    names = ("payment_intent", "transfer_group", "destination", "type", "source", "charge", "customer")
    return all(listed.get(name) == form[name] for name in names if name in form)


def shown(state: State, answer: Object, expand: list[str]) -> Object:
    """Return a copy as it goes over the wire."""
    answer = copy.deepcopy(answer)
    for path in expand:
        _expand(state, answer, path.split("."))
    _hide(answer)
    return answer


def _expand(state: State, value: Any, parts: list[str]) -> None:
    if isinstance(value, list):
        for one in value:
            _expand(state, one, parts)
        return
    if not parts or not isinstance(value, dict):
        return
    inner = value.get(parts[0])
    if isinstance(inner, str) and inner in state.objects:
        value[parts[0]] = inner = copy.deepcopy(state.objects[inner])
    _expand(state, inner, parts[1:])


def _hide(value: Any) -> None:
    if isinstance(value, dict):
        for name in _HIDDEN:
            value.pop(name, None)
        for inner in value.values():
            _hide(inner)
    elif isinstance(value, list):
        for inner in value:
            _hide(inner)
