"""Fields of the forms about keys, users and limits; the admin API's own models check the rest."""

import re
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, Field

from gateway.admin.fields import Text
from gateway.api.keys import ChangedKey, NewKey, Priority, Region
from gateway.quota import Measure, Span
from gateway.settings.base import LaneName, Privacy, Role

_DAY_S = 86_400
Lasts = Literal["keep", "never", "1", "7", "30", "90", "365"]
"""The number of days a key stays valid from now on; `keep` does not change it."""
_SEPARATORS = re.compile(r"[,\s]+")


def _words(given: Any) -> Any:
    """Split a list at commas, spaces or newlines; an empty list means no restriction."""
    texts = [given] if isinstance(given, str) else given or ()
    return tuple(dict.fromkeys(word for text in texts for word in _SEPARATORS.split(str(text)) if word)) or None


Models = Annotated[tuple[Text, ...] | None, Field(max_length=1000), BeforeValidator(_words)]
Regions = Annotated[tuple[Region, ...] | None, Field(max_length=100), BeforeValidator(_words)]
Amount = Annotated[str, Field(max_length=40)]
Plain = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")]
"""A text in a query string."""


class KeyTermsForm(BaseModel):
    """A key's permissions as a form sends them. An unchecked box is not sent."""

    lanes: tuple[LaneName, ...] = ()
    models: Models = None
    regions: Regions = None
    privacy: Privacy = "public"
    priority: Priority = 0
    lasts: Lasts = "keep"
    may_administer: bool = False

    @property
    def expires_in_s(self) -> int | None:
        return int(self.lasts) * _DAY_S if self.lasts.isdecimal() else None

    def as_change(self) -> ChangedKey:
        """Return the change. Raises pydantic's ValidationError if there is no lane."""
        values = self.model_dump(exclude={"lasts"})
        if self.lasts != "keep":
            values["expires_in_s"] = self.expires_in_s
        return ChangedKey(**values)


class LanesForm(KeyTermsForm):
    """Requires at least one lane: a key without any lane is useless and should be revoked instead."""

    lanes: Annotated[tuple[LaneName, ...], Field(min_length=1)]


class NewKeyForm(LanesForm):
    name: Text
    user: Text
    lasts: Lasts = "never"
    spend: Amount | None = None
    """The monthly budget in USD."""

    def as_new(self) -> NewKey:
        values = self.model_dump(exclude={"lasts", "spend"})
        return NewKey(**values, expires_in_s=self.expires_in_s)


class RotationForm(BaseModel):
    """The number of hours that the previous secret stays valid."""

    grace_hours: Annotated[int, Field(ge=0, le=30 * 24)] = 1


class LimitForm(BaseModel):
    """A limit; `kind` combines measure and span, such as `spend month`."""

    scope: Text
    kind: Annotated[str, Field(pattern=r"^(requests|tokens|concurrency|spend)( (minute|day|month))?$")]
    amount: Amount
    model: Text | None = None

    @property
    def measure(self) -> Measure:
        return self.kind.split()[0]  # type: ignore[return-value]

    @property
    def span(self) -> Span | None:
        return self.kind.partition(" ")[2] or None  # type: ignore[return-value]


class LimitGone(BaseModel):
    """A limit to remove."""

    scope: Text
    measure: Measure
    span: Span | None = None
    model: Text | None = None


class UserForm(BaseModel):
    user: Text
    name: Text | None = None
    email: Text | None = None
    role: Role = "member"
    organization: Text | None = None


class RoleForm(BaseModel):
    role: Role


class OrganizationForm(BaseModel):
    id: Text
    name: Text | None = None


class NoFields(BaseModel):
    """A form that is only a button."""
