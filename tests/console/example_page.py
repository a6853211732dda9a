"""A page as page builders write one, with a stream and a form, which the frame's tests visit."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fastapi import APIRouter, Request, Response
from jinja2 import ChoiceLoader, DictLoader
from pydantic import BaseModel, Field

from accounting.money import UsdAmount
from gateway.console import console, renderer
from gateway.console.access import Manager, Operator, Viewer
from gateway.console.forms import Form, read_form
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages import ROUTERS
from gateway.console.renderer import go, page, partial
from runtime.errors import NotFound

router = APIRouter(prefix="/console/models")


class FilterForm(BaseModel):
    name: str = Field(min_length=3)
    slots: int = Field(ge=1)
    price: UsdAmount
    lanes: list[str] = []
    is_pinned: bool = False


class Ticking:
    """What the live page shows, and how often it was drawn."""

    def __init__(self) -> None:
        self.text = "one"
        self.drawn = 0
        self.is_broken = False
        self.takes_s = 0.0
        self.points: list[list[float]] = [[1.0, 2], [2.0, 3]]

    async def render(self) -> list[Region | Points]:
        self.drawn += 1
        if self.takes_s:
            await asyncio.to_thread(_compute, self.takes_s)
        if self.is_broken:
            raise RuntimeError("nothing to draw with")
        return [
            Region("now", "example/now.html", {"text": self.text}),
            Points("load", self.points),
        ]


def _compute(cpu_s: float) -> None:
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


ticking = Ticking()


@router.get("")
async def show(visitor: Viewer) -> Response:
    form: Form[FilterForm] = Form.showing(name="llama", slots=4)
    return page("example/page.html", visitor, form=form, text=ticking.text)


@router.get("/live")
async def live(request: Request, visitor: Viewer) -> Response:
    return await live_response(visitor, LivePage("example", ticking.render, every_s=0.02))


@router.post("")
async def create(request: Request, visitor: Manager) -> Response:
    form = await read_form(visitor, FilterForm)
    if form.value is None:
        return page("example/page.html", visitor, 400, form=form, text=ticking.text)
    return go(visitor, "/console/models/llama", f"{form.value.name} <made>: {form.value!r}")


@router.post("/part")
async def part(visitor: Viewer) -> Response:
    return partial("example/now.html", visitor, text="<part>", toast="Saved <it>.")


@router.post("/nope")
async def nope(visitor: Viewer) -> Response:
    raise NotFound(f"There is nothing of {visitor.caller.user_id}'s.")


@router.get("/instance")
async def instance(visitor: Operator) -> Response:
    return page("example/page.html", visitor, form=Form(), text="instance")


@router.get("/{name}")
async def one(name: str, visitor: Viewer) -> Response:
    if name != "llama":
        raise NotFound(f"There is no model {name}.")
    return page("example/page.html", visitor, form=Form(), text=name)


_PAGE = """
{% extends "frame.html" %}
{% block title %}Models{% endblock %}
{% block actions %}
{{ ui.confirm("drop", "Drop", "Drop it?", "/console/models/part", "It is gone then.") }}
{% endblock %}
{% block content %}
<div id="now">{% include "example/now.html" %}</div>
{{ ui.chart("load", "Load", "tokens/s", ["cluster", "cloud"], [[1, 2, 3], [2, 3, 4]]) }}
{% call ui.card("New") %}
<form method="post" class="mr-form">
  {{ ui.csrf_field() }}{{ ui.form_problem(form) }}
  {{ ui.field("name", "Name", form, hint="As in requests.", required=true) }}
  {{ ui.field("slots", "Slots", form, type="number", value=1) }}
  {{ ui.field("price", "Price", form) }}
  {{ ui.field("lanes", "Lanes", form, type="choices", options=["cluster", "cloud"]) }}
  {{ ui.field("is_pinned", "Pinned", form, type="switch") }}
  <button class="btn">Create</button>
</form>
{% endcall %}
{% call(key) ui.tabs("which", [("a", "First"), ("b", "Second")]) %}<p>Panel {{ key }}</p>{% endcall %}
{% call ui.table("Rows", ["Name", ("Size", "num"), ""]) %}
<tr><td>{{ "abcdefghijklmnop"|short_id }}</td><td class="num">{{ 3221225472|size }}</td><td></td></tr>
{% endcall %}
{{ ui.badge("running", "good") }} {{ ui.copyable("text") }} {{ ui.code("a = 1") }}
{{ ui.notice("Slow link", "warn", "Plug it in.") }}
<button class="btn" hx-post="/console/models/part" hx-target="#part">Ask</button> <div id="part"></div>
<button class="btn" hx-post="/console/models/nope" hx-target="#part">Ask wrongly</button>
{{ ui.live("/console/models/live") }}
{% endblock %}
"""
_TEMPLATES = {"example/page.html": _PAGE, "example/now.html": "<p>Now: {{ text }}</p>"}


@contextmanager
def example_page() -> Iterator[Ticking]:
    """Apps made within have it in place of the page of the same path."""
    environment = renderer._templates
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "ROUTERS", (router, *ROUTERS))
        assert environment.loader
        patch.setattr(environment, "loader", ChoiceLoader([DictLoader(_TEMPLATES), environment.loader]))
        yield ticking
