"""The playground page, with fields filled in from the query string; and the figures of an answer after its end."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from accounting.ledger.postings import FROM_CACHE
from gateway.admin.catalogue import Entry, catalogue
from gateway.app_state import Lanes, RequestLog, Responses
from gateway.billing.request_log import RequestEntry
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import Form, check
from gateway.console.pages.playground.question import (
    CONVERSATION_CHARS_MAX,
    PATH,
    SYSTEM_CHARS_MAX,
    TURNS_MAX,
    Question,
)
from gateway.console.pages.requests.one import Turn, find_visible, stored_turns, tokens_per_s
from gateway.console.renderer import page, pages_of, partial
from gateway.settings.base import LaneName
from runtime.errors import NotFound

_LANES: tuple[LaneName, ...] = ("cluster", "pool", "cloud", "market")
_FIELDS_MAX = 20

router = APIRouter(prefix=PATH)


class Prefill(BaseModel):
    """Values that links to the page fill in; nothing is sent. `request` is a logged request to repeat."""

    model: Annotated[str, Field(max_length=256)] | None = None
    lane: Annotated[str, Field(max_length=20)] | None = None
    prompt: Annotated[str, Field(max_length=20_000)] | None = None
    request: Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")] | None = None
    system: Annotated[str, Field(max_length=SYSTEM_CHARS_MAX)] | None = None


@router.get("")
async def show(
    request: Request, visitor: Viewer, present: Lanes, log: RequestLog, responses: Responses
) -> Response:
    given: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items()[:_FIELDS_MAX]:
        if name in Prefill.model_fields:
            given.setdefault(name, []).append(value)
    prefill_form = check(Prefill, given)
    notices = [("bad", f"{name}: {sentence}", "") for name, sentence in prefill_form.errors.items()]
    prefill = prefill_form.value or Prefill()
    if prefill.request:
        entry = await asyncio.to_thread(find_visible, visitor, log, prefill.request)
        stored = await stored_turns(visitor, responses, entry.request_id) if entry else None
        prefill, notice = _replayed(prefill, entry, stored or ())
        notices.append(notice)
    models, lanes = chat_models(visitor, present), lanes_of(visitor, present)
    form, more = _filled(prefill, [entry.name for entry in models], lanes)
    return page(
        "playground/page.html",
        visitor,
        400 if prefill_form.errors else 200,
        form=form,
        notices=[*notices, *more],
        models=[(entry.name, f"{entry.name} ({', '.join(entry.lanes)})") for entry in models],
        lanes=[("", "automatic"), *lanes],
        lanes_of_models={entry.name: entry.lanes for entry in models},
        bounds={"chars": CONVERSATION_CHARS_MAX, "turns": TURNS_MAX, "system": SYSTEM_CHARS_MAX},
    )


def chat_models(visitor: Visitor, lanes: Lanes) -> list[Entry]:
    """Return the chat models available to the visitor; models whose abilities are unknown are included."""
    found = catalogue(lanes, visitor.caller)
    return [entry for entry in found if not entry.offers or any("chat" in offer.kinds for offer in entry.offers)]


def lanes_of(visitor: Visitor, lanes: Lanes) -> list[LaneName]:
    """Return the lanes that exist and that the visitor may use; the request path enforces this as well."""
    return [lane for lane in _LANES if lane in lanes and lane in visitor.caller.lanes]


Notice = tuple[str, str, str]
"""Tone, title and remedy."""


def _replayed(prefill: Prefill, entry: RequestEntry | None, stored: Sequence[Turn]) -> tuple[Prefill, Notice]:
    """Fill in what is known of a request to repeat; its text only if it was stored for this caller."""
    if entry is None:
        return prefill, ("warn", "Request not found", "It may be another user's, or too old.")
    lane = entry.lane if entry.lane in _LANES else None
    known = prefill.model_copy(update={"model": prefill.model or entry.model, "lane": prefill.lane or lane})
    turns = [turn for turn in stored if turn.who == "user"]
    if not turns:
        hint = "The log stores neither prompt nor answer. Type or paste the prompt again."
        return known, ("info", "Model and lane filled in from the request", hint)
    last = turns[-1]
    hint = "Earlier messages are not filled in." if len(turns) > 1 else "Nothing is sent until you press Send."
    if last.left_out:
        hint = f"The last {last.left_out:,} characters are not filled in."
    known = known.model_copy(update={"prompt": prefill.prompt or last.text})
    return known, ("info", "Prompt, model and lane filled in from the request", hint)


def _filled(prefill: Prefill, models: list[str], lanes: list[LaneName]) -> tuple[Form[Question], list[Notice]]:
    """Return the initial form, and notices about values that cannot be used."""
    notices: list[Notice] = []
    model, lane = prefill.model, prefill.lane
    if model is not None and model not in models:
        notices.append(("warn", f"Model {model} is not available", "Choose another model."))
        model = None
    if lane is not None and lane not in lanes:
        notices.append(("warn", f"Lane {lane} is not available", "Choose another lane."))
        lane = None
    values: dict[str, Any] = {"model": model or (models[0] if models else None), "lane": lane}
    return Form.showing(**values, prompt=prefill.prompt, system=prefill.system), notices


PATIENCE_S = 6.0
"""Requests are posted in batches, about every half second."""
_LOOK_EVERY_S = 0.15

RequestId = Annotated[str, Path(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]


@router.get("/answers/{request_id}")
async def show_figures(visitor: Viewer, log: RequestLog, request_id: RequestId) -> Response:
    """Wait briefly for the row. Raises NotFound, also for other users' requests."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PATIENCE_S
    while (entry := await asyncio.to_thread(find_visible, visitor, log, request_id)) is None:
        if loop.time() >= until_s:
            raise NotFound("Request not found. It may not be in the log yet, or it is not yours.")
        await asyncio.sleep(_LOOK_EVERY_S)
    has_requests = any(shown.path == "/console/requests" for shown in pages_of(visitor.request))
    return partial(
        "playground/facts.html",
        visitor,
        entry=entry,
        tokens_per_s=_speed(entry),
        has_requests=has_requests,
    )


def _speed(entry: RequestEntry) -> float | None:
    """Return tokens per second after the first token, or over all its time. None for cached answers."""
    if entry.lane == FROM_CACHE or not entry.completion_tokens or not entry.duration_ms:
        return None
    return tokens_per_s(entry) or 1000 * entry.completion_tokens / entry.duration_ms
