"""Routing simulator: where a request would go now and why, by the live router; nothing is sent or charged."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field, field_validator

from gateway.admin.authority import Authority
from gateway.admin.catalogue import model_names
from gateway.admin.fields import Text
from gateway.admin.route_trial import RouteQuestion, explain_route
from gateway.app_state import Lanes, Router
from gateway.console.access import Operator, Visitor
from gateway.console.forms import Form, read_form, refused
from gateway.console.pages.keys.key_list import opening_rows
from gateway.console.renderer import page
from gateway.routing.router import BYTES_PER_TOKEN
from gateway.settings.base import LaneName, Privacy
from runtime.errors import Conflict, NotFound, RequestInvalid

router = APIRouter(prefix="/try")

PROMPT_TOKENS_MAX = 200_000
KEYS_SHOWN = 500
"""Limit of the newest keys offered in the list."""
_WORD = "word "


class TrialForm(BaseModel):
    """A request to simulate: its prompt, or only its length; `more` has extra parameters as JSON."""

    model: Text
    key: Text | None = None
    prompt: Annotated[str, Field(max_length=40_000)] | None = None
    prompt_tokens: Annotated[int, Field(ge=1, le=PROMPT_TOKENS_MAX)] = 20
    max_tokens: Annotated[int, Field(ge=1, le=10**6)] | None = None
    lane: LaneName | None = None
    privacy: Privacy | None = None
    more: Annotated[str, Field(max_length=8000)] | None = None

    @field_validator("more")
    @classmethod
    def _is_an_object(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                msgspec.json.decode(text, type=dict[str, Any])
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise ValueError(f'must be a JSON object such as {{"tools": []}}: {error}') from None
        return text

    def as_request(self) -> dict[str, Any]:
        """Return a chat completion request; a length without a prompt becomes filler words."""
        length = self.prompt_tokens * BYTES_PER_TOKEN
        prompt = self.prompt or (_WORD * (length // len(_WORD) + 1))[:length]
        request: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": prompt}]}
        request["stream"] = True
        if self.max_tokens:
            request["max_tokens"] = self.max_tokens
        more: dict[str, Any] = msgspec.json.decode(self.more) if self.more else {}
        extras = {name: value for name, value in (("privacy", self.privacy), ("lane", self.lane)) if value}
        if extras and isinstance(more.get("millrace", {}), dict):
            more["millrace"] = more.get("millrace", {}) | extras
        return request | more


@router.get("")
async def ask(visitor: Operator, lanes: Lanes) -> Response:
    models = model_names(lanes)
    form: Form[TrialForm] = Form.showing(model=models[0] if models else None, prompt_tokens=20)
    return await _page(visitor, lanes, form)


@router.post("")
async def try_request(visitor: Operator, live: Router, lanes: Lanes) -> Response:
    form = await read_form(visitor, TrialForm)
    if form.value is None:
        return await _page(visitor, lanes, form, status=400)
    question = RouteQuestion(request=form.value.as_request(), key=form.value.key)
    try:
        decision = await explain_route(_asking(visitor), live, question)
    except (RequestInvalid, NotFound, Conflict) as error:
        return await _page(visitor, lanes, _refused(form, error), status=400)
    return await _page(visitor, lanes, form, decision)


def _asking(visitor: Visitor) -> Authority:
    """Return the visitor's authority; a session without a key has no key prefix that a rule could name."""
    caller = visitor.caller
    named = caller if caller.key_id else replace(caller, key_prefix="(your session)")
    return replace(visitor.authority, caller=named)


def _refused(form: Form[TrialForm], error: RequestInvalid | NotFound | Conflict) -> Form[TrialForm]:
    """Show the error beside the field it came from; fields unknown to the form came from the JSON."""
    known = error.param if error.param in TrialForm.model_fields else "more"
    error.param = "key" if isinstance(error, NotFound | Conflict) else known
    return refused(form, error)


async def _page(
    visitor: Visitor,
    lanes: Lanes,
    form: Form[TrialForm],
    decision: dict[str, Any] | None = None,
    status: int = 200,
) -> Response:
    keys = await asyncio.to_thread(_keys, visitor)
    return page(
        "policy/try.html",
        visitor,
        status,
        form=form,
        decision=decision,
        models=model_names(lanes),
        keys=keys,
        tab="try",
    )


def _keys(visitor: Visitor) -> list[tuple[str, str]]:
    rows = opening_rows(visitor, KEYS_SHOWN)
    named = [(row.key_id, f"{row.name}, {row.user_id} ({row.prefix}…)") for row in rows]
    return [("", "your session"), *named]
