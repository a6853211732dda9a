"""Pages of a list in OpenAI's format."""

from collections.abc import Sequence
from typing import Any, Protocol

PAGE_MAX = 100


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    def as_api(self) -> dict[str, Any]: ...


def page(rows: Sequence[Listed], limit: int) -> dict[str, Any]:
    """Return the first `limit` of `rows`; one more row means that there is another page."""
    shown = rows[:limit]
    return {
        "object": "list",
        "data": [one.as_api() for one in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": len(rows) > limit,
    }
