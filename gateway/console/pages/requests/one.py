"""One request: how its time went, why it went where it did, and what stands of it in the books."""

import asyncio
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting.tables import event_table, usage_table
from gateway.console.access import Viewer, Visitor
from gateway.console.browser import is_htmx
from gateway.console.pages.requests.said import stored_turns
from gateway.console.pages.requests.wanted import as_shown, visible_to
from gateway.console.rendering import page, pages_of, partial
from gateway.errors import NotFound
from gateway.identity.key_queries import names_of
from gateway.paging import Cursor
from gateway.records.request_log import ROWS_MAX, RequestEntry, RequestLog

router = APIRouter(prefix="/console/requests")

RequestId = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
_MS_PER_S = 1000
_REPLAYED = ("chat", "completion")
_REMEDIES = {
    400: "Change the field that it names and send the request again.",
    401: "Check the key: it may have been revoked, or be another gateway's.",
    402: "Buy credits on the Balance page, or choose a lane that costs nothing.",
    403: "Ask an admin for a key that may do this, or change the policy.",
    404: "Choose a model that GET /v1/models lists.",
    413: "Send less text.",
    429: "Wait for as long as the answer said, or have the limit raised.",
    499: "The caller hung up first: give it more time to wait.",
    502: "Send it again: the backend failed. Its state is on the Models page.",
    503: "Try again later, or choose another lane: nobody had room for it.",
    504: "Try again later, or allow it more time.",
}
_BROKE_OFF = "Send it again. What had come until then was delivered, and is what was charged."


@dataclass(frozen=True, slots=True)
class Booked:
    """What the books know of it; events are by number, None where there is none.

    Credits are held for each request by itself, or for many of a person's in a `lease`, which is named then.
    """

    event_seq: int | None
    event_kind: str
    hold_seq: int | None
    lease: str
    cached_tokens: int
    cost_nano: int
    price_id: str | None
    department: str
    user_id: str
    count_source: str


@dataclass(frozen=True, slots=True)
class Step:
    """One stretch of a request's time; `share` is its part of the whole, in percent, `at` where it begins.

    `begins` and `ends` are the moments between which it lies.
    """

    begins: str
    ends: str
    took_ms: int
    at: float
    share: float
    foretold_ms: float | None


@router.get("/{request_id}")
async def show(request: Request, visitor: Viewer, request_id: RequestId) -> Response:
    """As a page, or for a script as what goes into the drawer. Raises NotFound."""
    entry = await asyncio.to_thread(find_visible, visitor, request_id)
    if entry is None:
        raise NotFound("There is no such request in the log, or it is not yours. Old ones are removed.")
    values = await values_of(visitor, as_shown(entry, to_operator=visitor.is_operator))
    if is_htmx(request):
        return partial("requests/one.html", visitor, in_drawer=True, **values)
    return page("requests/one_page.html", visitor, in_drawer=False, **values)


def find_visible(visitor: Visitor, request_id: str) -> RequestEntry | None:
    """The request if the visitor may see it: if it is among those that they would be listed."""
    log: RequestLog = visitor.services.request_log
    entry = log.find(request_id)
    if entry is None or visitor.is_operator:
        return entry
    then_ns = entry.started_ns
    wanted = replace(visible_to(visitor), since_ns=then_ns, until_ns=then_ns + 1)
    rows = log.page(wanted, ROWS_MAX, Cursor(then_ns + 1, "")).rows
    return next((row for row in rows if row.request_id == request_id), None)


async def values_of(visitor: Visitor, entry: RequestEntry) -> dict[str, Any]:
    """What its template shows. Raises DatabaseFailing."""
    booked = await visitor.services.books.look(lambda session: _booked(session, entry))
    names = await visitor.services.books.look(lambda session: names_of(session, [entry.key_id]))
    turns = await stored_turns(visitor, entry.request_id)
    paths = {shown.path for shown in pages_of(visitor.request)}
    whole = _foretold(entry).get("end")
    assert isinstance(entry.decision, dict)
    return {
        "entry": entry,
        "decision": {"candidates": [], "rejected": [], "reason": ""} | entry.decision,
        "booked": booked,
        "key_name": names.get(entry.key_id, ""),
        "turns": turns,
        "steps": steps_of(entry),
        "foretold_ms": whole,
        "tokens_per_s": tokens_per_s(entry),
        "remedy": remedy_of(entry),
        "has_balance": "/console/balance" in paths,
        "replays": "/console/playground" in paths and entry.kind in _REPLAYED,
    }


def steps_of(entry: RequestEntry) -> list[Step]:
    """Admission, decision, first token, end: the stretches between those of them that it reached."""
    whole_ms = max(entry.duration_ms, 1)
    moments = {
        "decision": entry.decided_ms,
        "first token": entry.ttft_ms,
        "end": entry.duration_ms,
    }
    foretold = _foretold(entry)
    steps: list[Step] = []
    begins, before_ms, before_foretold = "admission", 0, 0.0
    for ends, at_ms in moments.items():
        if at_ms is None:
            continue
        # Each is rounded by itself: none may seem to end before it begins.
        at_ms = min(max(at_ms, before_ms), max(entry.duration_ms, before_ms))
        took_ms, then = at_ms - before_ms, foretold.get(ends)
        share = 100 * took_ms / whole_ms if entry.duration_ms else 100.0 if ends == "end" else 0.0
        expected = None if then is None else max(0.0, then - before_foretold)
        steps.append(Step(begins, ends, took_ms, 100 * before_ms / whole_ms, share, expected))
        begins, before_ms, before_foretold = ends, at_ms, before_foretold if then is None else then
    return steps


def tokens_per_s(entry: RequestEntry) -> float | None:
    """Of the tokens behind the first one; None where too few came to tell."""
    if entry.ttft_ms is None or entry.completion_tokens < 2 or entry.duration_ms <= entry.ttft_ms:
        return None
    return _MS_PER_S * (entry.completion_tokens - 1) / (entry.duration_ms - entry.ttft_ms)


def remedy_of(entry: RequestEntry) -> str:
    if entry.outcome == "complete":
        return ""
    return _BROKE_OFF if entry.status == 200 else _REMEDIES.get(entry.status, "Send it again.")


def _foretold(entry: RequestEntry) -> dict[str, float]:
    """What was predicted of the backend that answered, by moment: milliseconds from the beginning."""
    labels = (entry.backend, f"{entry.lane}:{entry.backend}")
    assert isinstance(entry.decision, dict)
    for one in entry.decision.get("candidates", ()):
        # Rows of earlier versions have fewer figures.
        if one.get("lane") in labels and "first_token_s" in one and "predicted_s" in one:
            found = {
                "decision": one.get("wait_s", 0.0),
                "first token": one["first_token_s"],
                "end": one["predicted_s"],
            }
            return {moment: _MS_PER_S * at_s for moment, at_s in found.items()}
    return {}


def _booked(session: Session, entry: RequestEntry) -> Booked | None:
    """None where the books have no row of it: not yet, or nothing was used."""
    usage = session.execute(select(usage_table).where(usage_table.c.request_id == entry.request_id)).one_or_none()
    if usage is None:
        return None
    event = event_table.c
    kind, ref = session.execute(
        select(event.kind, event.ref).where(event.seq == usage.event_seq)
    ).one_or_none() or (
        "",
        "",
    )
    hold_seq = session.scalar(select(event.seq).where(event.idem_key == f"hold:{entry.request_id}"))
    return Booked(
        usage.event_seq,
        kind,
        hold_seq,
        ref if kind == "lease" else "",
        usage.cached_tokens,
        usage.cost_nano,
        usage.price_id,
        usage.department,
        usage.user_id,
        usage.count_source,
    )
