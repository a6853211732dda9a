"""The filter in the query string, and the requests that a visitor may see."""

import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal
from urllib.parse import urlencode

from fastapi import Request
from msgspec import structs
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from accounting.ledger.postings import Outcome
from gateway.admin.fields import Text, as_ns
from gateway.billing.request_filter import RequestFilter
from gateway.billing.request_log import RequestEntry
from gateway.console.access import Visitor
from gateway.console.forms import Form, check
from gateway.errors import RoleForbids
from runtime.redaction import texts_without_internals, without_internals

LANES = ("cluster", "pool", "cloud", "market", "cache", "none")
Lane = Literal["cluster", "pool", "cloud", "market", "cache", "none"]
Last = Literal["15m", "1h", "24h", "7d"]

_LAST_S: dict[Last, int] = {"15m": 900, "1h": 3600, "24h": 86_400, "7d": 7 * 86_400}
_STATUS = re.compile(r"[1-5](xx|[0-9]{2})")
_FIELDS_MAX = 20


class FilterForm(BaseModel):
    """The common properties of the rows. `status` is one code, or a class such as 4xx; times are UTC."""

    model_config = ConfigDict(frozen=True)

    lane: Lane | None = None
    model: Text | None = None
    key: Text | None = None
    status: Annotated[str, Field(max_length=3)] | None = None
    outcome: Outcome | None = None
    last: Last | None = None
    since: datetime | None = None
    until: datetime | None = None

    @field_validator("status")
    @classmethod
    def _is_a_status(cls, text: str | None) -> str | None:
        if text is not None and not _STATUS.fullmatch(text):
            raise ValueError("Enter a status such as 429 or 4xx.")
        return text

    @field_validator("until")
    @classmethod
    def _is_later(cls, until: datetime | None, info: ValidationInfo) -> datetime | None:
        since = info.data.get("since")
        if until is not None and since is not None and _utc(until) <= _utc(since):
            raise ValueError("Enter a time later than From.")
        return until

    @property
    def is_of_now(self) -> bool:
        """Whether new requests may match."""
        return self.until is None

    def query(self, **more: str) -> str:
        """Return the query string."""
        parameters = self.model_dump(mode="json", exclude_none=True) | more
        return f"?{urlencode(parameters)}" if parameters else ""

    def within(self, visible: RequestFilter) -> RequestFilter:
        """Return the filter limited to `visible`. Raises RoleForbids for a key other than the session's key."""
        if visible.key_id and self.key not in (None, visible.key_id):
            raise RoleForbids("You signed in with a key, so you see only this key's requests.", param="key")
        return replace(
            visible,
            lane=self.lane,
            model=self.model,
            key_id=visible.key_id or self.key,
            status=_bounds(self.status),
            outcome=self.outcome,
            since_ns=self._since_ns(),
            until_ns=_ns(self.until),
        )

    def _since_ns(self) -> int | None:
        if self.last is None:
            return _ns(self.since)
        return max(time.time_ns() - _LAST_S[self.last] * 10**9, _ns(self.since) or 0)


def read_filters(request: Request) -> Form[FilterForm]:
    """Read the filter from the query string; other parameters are ignored."""
    given: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items()[:_FIELDS_MAX]:
        if name in FilterForm.model_fields:
            given.setdefault(name, []).append(value)
    return check(FilterForm, given)


def visible_to(visitor: Visitor) -> RequestFilter:
    """Return the visible requests: all for operators, an organization's for its admins, else the visitor's own."""
    caller = visitor.caller
    if visitor.is_operator:
        return RequestFilter()
    if visitor.is_manager:
        return RequestFilter(organization_id=caller.organization_id)
    return RequestFilter(user_id=caller.user_id, key_id=caller.key_id or None)


def as_shown(entry: RequestEntry, *, to_operator: bool) -> RequestEntry:
    """The entry as it may be shown: only operators read paths, names of keys, accounts and nano-dollars."""
    if to_operator:
        return entry
    return structs.replace(
        entry,
        error=without_internals(entry.error),
        reason=without_internals(entry.reason),
        decision=texts_without_internals(entry.decision),
    )


def _bounds(status: str | None) -> tuple[int, int] | None:
    if status is None:
        return None
    if status.endswith("xx"):
        first = 100 * int(status[0])
        return first, first + 99
    return int(status), int(status)


def _ns(moment: datetime | None) -> int | None:
    return None if moment is None else as_ns(_utc(moment))


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
