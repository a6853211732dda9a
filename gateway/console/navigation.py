"""The console's pages: their paths, their sidebar groups, and who may see each."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Standing = Literal["user", "seller", "manager", "operator"]
"""A visitor's access level: an operator is an instance admin, a manager is an admin of any organization."""


@dataclass(frozen=True, slots=True)
class Page:
    """`roles` are the access levels that may see it; one of them is enough."""

    path: str
    title: str
    group: str
    icon: str
    roles: frozenset[Standing]


_EVERY_USER: frozenset[Standing] = frozenset({"user"})
_MANAGERS: frozenset[Standing] = frozenset({"manager"})
_OPERATORS: frozenset[Standing] = frozenset({"operator"})
_SELLERS: frozenset[Standing] = frozenset({"seller", "operator"})

PAGES: tuple[Page, ...] = (
    Page("/console", "Overview", "Run", "layout-dashboard", _EVERY_USER),
    Page("/console/playground", "Playground", "Run", "message-square-text", _EVERY_USER),
    Page("/console/requests", "Requests", "Run", "list-tree", _EVERY_USER),
    Page("/console/cluster", "Cluster", "Machines", "server", _OPERATORS),
    Page("/console/models", "Models", "Machines", "boxes", _EVERY_USER),
    Page("/console/keys", "Keys & users", "Access", "key-round", _EVERY_USER),
    Page("/console/policy", "Policy", "Access", "shield-check", _MANAGERS),
    Page("/console/balance", "Balance", "Money", "wallet", _EVERY_USER),
    Page("/console/selling", "Selling", "Money", "store", _SELLERS),
)


def visible(pages: Collection[Page], standings: frozenset[Standing]) -> dict[str, list[Page]]:
    """Return the pages that the visitor may see, by group, in order."""
    groups: dict[str, list[Page]] = {}
    for page in pages:
        if page.roles & standings:
            groups.setdefault(page.group, []).append(page)
    return groups


def current(path: str) -> str:
    """Return the path of the page that `path` belongs to: the longest that equals it or is its parent."""
    under = (page.path for page in PAGES if path == page.path or path.startswith(f"{page.path}/"))
    return max(under, key=len, default="")
