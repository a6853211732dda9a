"""Field types of requests and forms, limited to values that databases accept."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from gateway.pages import Cursor
from runtime.errors import RequestInvalid

Facts: TypeAlias = dict[str, Any]
"""A result as JSON and pages show it."""

_NS_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

TEXT = r"^[^\x00]*$"
"""PostgreSQL stores no NUL in a text."""

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=TEXT)]
Texts = Annotated[tuple[Text, ...], Field(min_length=1, max_length=1000)]


def as_ns(when: datetime | None) -> int | None:
    """Return nanoseconds since the epoch, limited to the database's range."""
    if when is None:
        return None
    return min(max((when - _EPOCH) // _MICROSECOND * 1_000, 0), _NS_MAX)


def as_cursor(text: str | None, param: str) -> Cursor | None:
    """Raises RequestInvalid."""
    return None if text is None else Cursor.parse(text, param)


class Body(BaseModel):
    """A request; an unknown field is refused by its name."""

    model_config = ConfigDict(extra="forbid")


def refusal_of(problem: Mapping[str, Any], location: Sequence[int | str]) -> RequestInvalid:
    """Return the error for one of pydantic's problems; `location` is the way to the field within the request."""
    param, text = ".".join(map(str, location)), problem["msg"].removeprefix("Value error, ")
    return RequestInvalid(f"{param}: {text}" if param else text, param=param or None)
