"""One request: its timeline, the routing decision, its ledger entry, and its text if it is stored."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from accounting.tables import event_table, usage_table
from gateway.app_state import Ledger, RequestLog, Responses
from gateway.billing.request_log import ROWS_MAX, RequestEntry
from gateway.console.access import Viewer, Visitor
from gateway.console.browser import is_htmx
from gateway.console.pages.requests.wanted import as_shown, visible_to
from gateway.console.renderer import page, pages_of, partial
from gateway.dialects.responses.answer import response_id
from gateway.dialects.stored_responses.store import StoredResponse, owner_of
from gateway.identity.key_queries import names_of
from gateway.pages import Cursor
from runtime.errors import NotFound

router = APIRouter(prefix="/console/requests")

RequestId = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
_MS_PER_S = 1000
_REPLAYED = ("chat", "completion")
_REMEDIES = {
    400: "Correct the named field and send the request again.",
    401: "Check the key. It may have been revoked, or belong to another gateway.",
    402: "Buy credits on the Balance page, or choose a free lane.",
    403: "Ask an admin for a key with this permission, or change the policy.",
    404: "Choose a model that GET /v1/models lists.",
    413: "Send less text.",
    429: "Wait as long as the response says, or ask an admin to raise the limit.",
    499: "The client disconnected first. Increase its timeout.",
    502: "The backend failed. Send the request again, or check its state on the Models page.",
    503: "No backend had capacity. Try again later, or choose another lane.",
    504: "Try again later, or increase the timeout.",
}
_INTERRUPTED = "Send the request again. Only the delivered part of the answer was charged."


@dataclass(frozen=True, slots=True)
class Booked:
    """The request's row of usage, and its journal entries by number, None if there is none.

    Credits are held for each request, or for many of a user's requests in a `lease`, which is named then.
    """

    usage: Row[Any]
    event_kind: str
    hold_seq: int | None
    lease: str


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One stretch of a request's time; `share` is its percentage of the total, `at` its start in percent.

    `begins` and `ends` name the moments at its two ends.
    """

    begins: str
    ends: str
    took_ms: int
    at: float
    share: float
    foretold_ms: float | None


@router.get("/{request_id}")
async def show(
    request: Request, visitor: Viewer, log: RequestLog, ledger: Ledger, responses: Responses, request_id: RequestId
) -> Response:
    """Show the request as a page, or for a script as the drawer's content. Raises NotFound."""
    entry = await asyncio.to_thread(find_visible, visitor, log, request_id)
    if entry is None:
        raise NotFound("Request not found. It may be another user's, or too old.")
    values = await values_of(visitor, ledger, as_shown(entry, to_operator=visitor.is_operator))
    values["turns"] = await stored_turns(visitor, responses, entry.request_id)
    if is_htmx(request):
        return partial("requests/one.html", visitor, in_drawer=True, **values)
    return page("requests/one_page.html", visitor, in_drawer=False, **values)


def find_visible(visitor: Visitor, log: RequestLog, request_id: str) -> RequestEntry | None:
    """Return the request if the visitor may see it, that is, if the log would list it for them."""
    entry = log.find(request_id)
    if entry is None or visitor.is_operator:
        return entry
    then_ns = entry.started_ns
    filters = replace(visible_to(visitor), since_ns=then_ns, until_ns=then_ns + 1)
    rows = log.page(filters, ROWS_MAX, Cursor(then_ns + 1, "")).rows
    return next((row for row in rows if row.request_id == request_id), None)


async def values_of(visitor: Visitor, ledger: Ledger, entry: RequestEntry) -> dict[str, Any]:
    """Return the template's values. Raises DatabaseFailing."""
    booked = await ledger.look(lambda session: _booked(session, entry))
    names = await ledger.look(lambda session: names_of(session, [entry.key_id]))
    paths = {shown.path for shown in pages_of(visitor.request)}
    whole = _foretold(entry).get("end")
    assert isinstance(entry.decision, dict)
    return {
        "entry": entry,
        "decision": {"candidates": [], "rejected": [], "reason": ""} | entry.decision,
        "booked": booked,
        "key_name": names.get(entry.key_id, ""),
        "steps": steps_of(entry),
        "foretold_ms": whole,
        "tokens_per_s": tokens_per_s(entry),
        "remedy": remedy_of(entry),
        "has_balance": "/console/balance" in paths,
        "replays": "/console/playground" in paths and entry.kind in _REPLAYED,
    }


def steps_of(entry: RequestEntry) -> list[TimelineStep]:
    """Return the stretches between admission, decision, first token and end, as far as they were reached."""
    whole_ms = max(entry.duration_ms, 1)
    moments = {
        "decision": entry.decided_ms,
        "first token": entry.ttft_ms,
        "end": entry.duration_ms,
    }
    foretold = _foretold(entry)
    steps: list[TimelineStep] = []
    begins, before_ms, before_foretold = "admission", 0, 0.0
    for ends, at_ms in moments.items():
        if at_ms is None:
            continue
        # Each moment is rounded separately: none may appear to end before it begins.
        at_ms = min(max(at_ms, before_ms), max(entry.duration_ms, before_ms))
        took_ms, then = at_ms - before_ms, foretold.get(ends)
        share = 100 * took_ms / whole_ms if entry.duration_ms else 100.0 if ends == "end" else 0.0
        expected = None if then is None else max(0.0, then - before_foretold)
        steps.append(TimelineStep(begins, ends, took_ms, 100 * before_ms / whole_ms, share, expected))
        begins, before_ms, before_foretold = ends, at_ms, before_foretold if then is None else then
    return steps


def tokens_per_s(entry: RequestEntry) -> float | None:
    """Return tokens per second after the first token; None for too few tokens."""
    if entry.ttft_ms is None or entry.completion_tokens < 2 or entry.duration_ms <= entry.ttft_ms:
        return None
    return _MS_PER_S * (entry.completion_tokens - 1) / (entry.duration_ms - entry.ttft_ms)


def remedy_of(entry: RequestEntry) -> str:
    if entry.outcome == "complete":
        return ""
    return _INTERRUPTED if entry.status == 200 else _REMEDIES.get(entry.status, "Send the request again.")


def _foretold(entry: RequestEntry) -> dict[str, float]:
    """Return the prediction for the backend that answered, by moment: milliseconds from the start."""
    labels = (entry.backend, f"{entry.lane}:{entry.backend}")
    assert isinstance(entry.decision, dict)
    for one in entry.decision.get("candidates", ()):
        # Rows written by earlier versions have fewer figures.
        if one.get("lane") in labels and "first_token_s" in one and "predicted_s" in one:
            found = {
                "decision": one.get("wait_s", 0.0),
                "first token": one["first_token_s"],
                "end": one["predicted_s"],
            }
            return {moment: _MS_PER_S * at_s for moment, at_s in found.items()}
    return {}


def _booked(session: Session, entry: RequestEntry) -> Booked | None:
    """Return the ledger data; None if it was not posted yet, or nothing was used."""
    usage = session.execute(select(usage_table).where(usage_table.c.request_id == entry.request_id)).one_or_none()
    if usage is None:
        return None
    event = event_table.c
    query = select(event.kind, event.ref).where(event.seq == usage.event_seq)
    kind, ref = session.execute(query).one_or_none() or ("", "")
    hold_seq = session.scalar(select(event.seq).where(event.idem_key == f"hold:{entry.request_id}"))
    return Booked(usage, kind, hold_seq, ref if kind == "lease" else "")


TEXT_MAX = 20_000
"""Characters shown of one turn."""
TURNS_MAX = 50


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of one side; `left_out` counts the characters not shown."""

    who: str
    text: str
    left_out: int = 0


async def stored_turns(visitor: Visitor, responses: Responses, request_id: str) -> list[Turn] | None:
    """Return the turns; None if nothing is stored or it belongs to another user: not even admins can read it."""
    try:
        found = await responses.find(owner_of(visitor.caller), response_id(request_id.removeprefix("req_")))
    except NotFound:
        return None
    return turns_of(found)


def turns_of(stored: StoredResponse) -> list[Turn]:
    """Return the items sent, then those received; only the newest if there are many."""
    items = [*json.loads(stored.input), *json.loads(stored.answer).get("output", ())]
    return [_turn(item) for item in items[-TURNS_MAX:]]


def _turn(item: dict[str, Any]) -> Turn:
    kind = item.get("type", "message")
    who, text = (str(item.get("role", "user")), _text(item.get("content"))) if kind == "message" else _other(item)
    return Turn(who, text[:TEXT_MAX], max(0, len(text) - TEXT_MAX))


def _other(item: dict[str, Any]) -> tuple[str, str]:
    """Return who and text of tool calls, tool output and reasoning."""
    match item.get("type"):
        case "function_call":
            return "calls a tool", f"{item.get('name', '')}({item.get('arguments', '')})"
        case "function_call_output":
            return "tool", _text(item.get("output"))
        case "reasoning":
            return "reasoning", _text(item.get("summary") or item.get("content"))
        case kind:
            return str(kind).replace("_", " "), ""


def _text(content: object) -> str:
    """Return the text; parts that are not text are named."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(_part(part) for part in content if isinstance(part, dict))


def _part(part: dict[str, Any]) -> str:
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else f"[{part.get('type', 'unknown')}]"
