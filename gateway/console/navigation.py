"""The console's pages: where they are, how the sidebar groups them, and who may see each."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Standing = Literal["anybody", "seller", "manager", "operator"]
"""What a visitor is to a page: an operator is an admin of the house, a manager one of any organization."""


@dataclass(frozen=True, slots=True)
class Page:
    """`roles` are the standings that may see it; one of them is enough."""

    path: str
    title: str
    group: str
    icon: str
    roles: frozenset[Standing]


_ANYBODY: frozenset[Standing] = frozenset({"anybody"})
_MANAGERS: frozenset[Standing] = frozenset({"manager"})
_OPERATORS: frozenset[Standing] = frozenset({"operator"})
_SELLERS: frozenset[Standing] = frozenset({"seller", "operator"})

PAGES: tuple[Page, ...] = (
    Page("/console", "Overview", "Run", "layout-dashboard", _ANYBODY),
    Page("/console/playground", "Playground", "Run", "message-square-text", _ANYBODY),
    Page("/console/requests", "Requests", "Run", "list-tree", _ANYBODY),
    Page("/console/cluster", "Cluster", "Machines", "server", _OPERATORS),
    Page("/console/models", "Models", "Machines", "boxes", _ANYBODY),
    Page("/console/keys", "Keys & people", "Access", "key-round", _ANYBODY),
    Page("/console/policy", "Policy", "Access", "shield-check", _MANAGERS),
    Page("/console/balance", "Balance", "Money", "wallet", _ANYBODY),
    Page("/console/selling", "Selling", "Money", "store", _SELLERS),
)


def visible(pages: Collection[Page], standings: frozenset[Standing]) -> dict[str, list[Page]]:
    """The pages that somebody may see, by group, in their order."""
    groups: dict[str, list[Page]] = {}
    for page in pages:
        if page.roles & standings:
            groups.setdefault(page.group, []).append(page)
    return groups


def current(path: str) -> str:
    """The path of the page that a path belongs to: the longest that it is, or lies under."""
    under = (page.path for page in PAGES if path == page.path or path.startswith(f"{page.path}/"))
    return max(under, key=len, default="")
