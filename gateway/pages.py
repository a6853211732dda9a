"""Pages of a list: the position where a page ended, and the rows that it shows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

PAGE_MAX = 1000
CURSOR_MAX = 600

_AT_NS_MAX = 2**63 - 1
_NAME_MAX = 512


@dataclass(frozen=True, slots=True)
class Cursor:
    """The time and the id of the last row of a page; the next page begins after it."""

    at_ns: int
    name: str

    def __str__(self) -> str:
        return f"{self.at_ns}.{self.name}"

    @classmethod
    def parse(cls, text: str, param: str = "before") -> "Cursor":
        """Parse a cursor. Raises RequestInvalid for one that no page has returned."""
        # Commands take bounds from this module and print help without SQLAlchemy, which the errors import.
        from runtime.errors import RequestInvalid

        at, _, name = text.partition(".")
        is_number = at.isascii() and at.isdigit() and len(at) <= len(str(_AT_NS_MAX))
        if not is_number or int(at) > _AT_NS_MAX or len(name) > _NAME_MAX or "\x00" in name:
            raise RequestInvalid(f"{param}: use the value of the previous page, or leave it out", param=param)
        return cls(int(at), name)


class Located(Protocol):
    """A row that knows its place in a list."""

    @property
    def cursor(self) -> Cursor: ...


T = TypeVar("T")
L = TypeVar("L", bound=Located)


def page_of(rows: Sequence[L], limit: int) -> tuple[Sequence[L], str | None]:
    """Return the page's part of the `limit` + 1 rows, and where the next page begins: after the last row's cursor."""
    return rows[:limit], str(rows[limit - 1].cursor) if len(rows) > limit else None


def page_at(rows: Sequence[T], offset: int, limit: int) -> tuple[Sequence[T], int | None]:
    """Return the page's part of the `limit` + 1 rows, and the offset where the next page begins."""
    return rows[:limit], offset + limit if len(rows) > limit else None
