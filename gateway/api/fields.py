"""Field types of the admin API's bodies and queries, limited to values that databases accept."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Path, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from gateway.pages import CURSOR_MAX, PAGE_MAX, Cursor

_NS_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# PostgreSQL stores no NUL in a text.
_TEXT = r"^[^\x00]*$"

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=_TEXT)]
Named = Annotated[str, Path(min_length=1, max_length=200, pattern=_TEXT)]
OptionalText = Annotated[str | None, Query(max_length=200, pattern=_TEXT)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]


PageCursor = Annotated[str | None, Query(max_length=CURSOR_MAX, description="`next` of the previous page.")]
PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
Since = Annotated[AwareDatetime | None, Query(description="RFC 3339, with its offset from UTC.")]


def as_ns(when: datetime | None) -> int | None:
    """Return nanoseconds since the epoch, limited to the database's range."""
    if when is None:
        return None
    return min(max((when - _EPOCH) // _MICROSECOND * 1_000, 0), _NS_MAX)


def as_cursor(text: str | None, param: str) -> Cursor | None:
    """Raises RequestInvalid."""
    return None if text is None else Cursor.parse(text, param)


class Body(BaseModel):
    """A request body of the admin API; an unknown field is refused by its name."""

    model_config = ConfigDict(extra="forbid")
