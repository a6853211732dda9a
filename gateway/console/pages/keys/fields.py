"""Fields of the forms about keys and limits; the service layer's own requests check the rest."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from gateway.admin.fields import Text
from gateway.admin.keys import GRACE_S_MAX, ChangedKey, Lanes, NewKey, Region, Seconds
from gateway.admin.limits import NewLimit

_SEPARATORS = re.compile(r"[,\s]+")


def _words(given: Any) -> Any:
    """Split a list at commas, spaces or newlines; an empty list means no restriction."""
    texts = [given] if isinstance(given, str) else given or ()
    return tuple(dict.fromkeys(word for text in texts for word in _SEPARATORS.split(str(text)) if word)) or None


def _expiry(given: Any) -> Any:
    return None if given == "never" else given


Models = Annotated[tuple[Text, ...] | None, Field(max_length=1000), BeforeValidator(_words)]
Regions = Annotated[tuple[Region, ...] | None, Field(max_length=100), BeforeValidator(_words)]
Expiry = Annotated[Seconds | None, BeforeValidator(_expiry)]
Plain = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")]
"""A text in a query string."""


class ChangedKeyForm(ChangedKey):
    """A key's permissions. An empty field removes a restriction; an empty expiry stays as it is.

    At least one lane is required: a key without any lane is useless and should be revoked instead.
    """

    lanes: Lanes
    models: Models = None
    regions: Regions = None
    may_administer: bool = False
    expires_in_s: Expiry = None

    @model_validator(mode="before")
    @classmethod
    def _send_all(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"models": None, "regions": None} | dict(given)


class NewKeyForm(ChangedKeyForm, NewKey):
    spend: str | None = None
    """The monthly budget in USD."""


class RotationForm(BaseModel):
    """The number of hours that the previous secret stays valid."""

    grace_hours: Annotated[int, Field(ge=0, le=GRACE_S_MAX // 3600)] = 1


class LimitForm(NewLimit):
    """A limit; the field `kind` combines measure and span, such as `spend month`."""

    @model_validator(mode="before")
    @classmethod
    def _split_kind(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(given)
        measure, _, span = str(values.pop("kind", "")).partition(" ")
        return values | {"measure": measure, "span": span or None}
