"""Fields that bodies and queries of the admin API are made of, bounded and free of what no database takes."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from gateway.pages import CURSOR_MAX, PAGE_MAX, Cursor

_NS_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# PostgreSQL keeps no NUL in a text.
_TEXT = r"^[^\x00]*$"

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=_TEXT)]
Named = Annotated[str, Path(min_length=1, max_length=200, pattern=_TEXT)]
OptionalText = Annotated[str | None, Query(max_length=200, pattern=_TEXT)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]


PageCursor = Annotated[str | None, Query(max_length=CURSOR_MAX, description="`next` of the page before.")]
PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
Since = Annotated[AwareDatetime | None, Query(description="RFC 3339, with its offset from UTC.")]


def as_ns(when: datetime | None) -> int | None:
    """Nanoseconds since the epoch, within what a database counts."""
    if when is None:
        return None
    return min(max((when - _EPOCH) // _MICROSECOND * 1_000, 0), _NS_MAX)


def as_cursor(text: str | None, param: str) -> Cursor | None:
    """Raises RequestInvalid."""
    return None if text is None else Cursor.parse(text, param)


class Body(BaseModel):
    """What is sent to the admin API; a field that it does not know is refused by its name."""

    model_config = ConfigDict(extra="forbid")
