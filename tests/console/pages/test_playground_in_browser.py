"""The playground in a browser: an answer that streams, two side by side, and what happens when it goes wrong."""

import asyncio
import json
import re
from collections.abc import Iterator

import httpx
import pytest
from aiohttp import web
from playwright.sync_api import Page, expect

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests.clusters import DEMO_MODEL
from tests.console.browsing import admin_key, assert_accessible, sign_in
from tests.fakes import openai_provider as provider
from tests.fakes.provider_server import ProviderServer, Received
from tests.fakes.provider_server import running as serving
from tests.gateways import Gateway

pytestmark = pytest.mark.browser

PLAYGROUND = "/console/playground"
TEXT = "The mill wheel turns all night."
MODELS = ("fake", "fake.slow-chunks", "fake.aborts")


def piece(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


ELSEWHERE = {"message": "Sign in again.", "href": "https://elsewhere.example/", "remedy": ["x"]}
SPOILT = {
    "spoilt.links": json.dumps({"error": ELSEWHERE}),
    "spoilt.garbled": "{<html>",
    "spoilt.halved": piece("\ud83d"),
}


async def say_spoilt(request: web.Request, received: Received) -> web.StreamResponse:
    """A word, what SPOILT has for the model, and no end until the caller leaves."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for data in (piece("Hm"), SPOILT[received.body["model"]]):
        await response.write(f"data: {data}\n\n".encode())
        await asyncio.sleep(0.1)
    await asyncio.sleep(60)
    return response


@pytest.fixture(scope="module")
def gateway(gateway: Gateway) -> Iterator[Gateway]:
    """The gateway with another server in its pool, whose models do as they are told."""
    running = DataFolder(gateway.folder).read_running()
    assert running
    headers = {HEADER: running["admin_token"]}
    with provider.openai_provider() as server, httpx.Client(headers=headers, trust_env=False, timeout=60) as admin:
        desk = {"name": "desk", "base_url": f"{server.origin}/v1", "api_key": provider.KEY, "kind": "openai"}
        pool = f"{gateway.root}/admin/pool/backends"
        admin.post(pool, json=desk | {"models": MODELS}).raise_for_status()
        yield gateway
        admin.post(f"{pool}/desk/remove").raise_for_status()


@pytest.fixture(scope="module")
def spoilt(gateway: Gateway) -> Iterator[ProviderServer]:
    """A server in the pool whose answers nobody should be harmed by."""
    running = DataFolder(gateway.folder).read_running()
    assert running
    headers = {HEADER: running["admin_token"]}
    with (
        serving(ProviderServer({"/v1/chat/completions": say_spoilt}, models=tuple(SPOILT))) as server,
        httpx.Client(headers=headers, trust_env=False, timeout=60) as admin,
    ):
        named = {"name": "spoilt", "base_url": f"{server.origin}/v1", "kind": "openai", "models": list(SPOILT)}
        pool = f"{gateway.root}/admin/pool/backends"
        admin.post(pool, json=named).raise_for_status()
        yield server
        admin.post(f"{pool}/spoilt/remove").raise_for_status()


def opened(page: Page, gateway: Gateway, query: str = "", key: str | None = None) -> None:
    sign_in(page, gateway, PLAYGROUND + query, key=key)
    expect(page.get_by_role("heading", name="Playground", level=1)).to_be_visible()


def limit(page: Page, tokens: int) -> None:
    page.get_by_text("System prompt, temperature, length").click()
    page.get_by_label("Max tokens").fill(str(tokens))


def test_an_answer_streams_and_says_where_it_came_from(page: Page, gateway: Gateway) -> None:
    opened(page, gateway, f"?model={DEMO_MODEL.name}")
    expect(page.get_by_text("No messages yet")).to_be_visible()
    assert_accessible(page)
    limit(page, 8)
    page.get_by_label("Message").fill("Hello <b>there</b>")
    page.get_by_label("Message").press("Enter")
    answer = page.get_by_role("group", name=f"Answer of {DEMO_MODEL.name}")
    expect(answer.locator(".pg-text")).not_to_be_empty()
    expect(answer.get_by_role("link", name="Show request")).to_be_visible()
    expect(answer).to_contain_text("cluster")
    expect(answer).to_contain_text("tok/s")
    expect(answer).to_contain_text("$0.00")
    expect(page.locator(".pg-question")).to_contain_text("Hello <b>there</b>")
    expect(page.get_by_label("Message")).to_have_value("")
    assert_accessible(page)
    page.get_by_role("button", name="View code").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("tabpanel", name="curl")).to_contain_text(f"{gateway.base_url}/chat/completions")
    dialog.get_by_role("tab", name="Python").click()
    expect(dialog.get_by_role("tabpanel", name="Python")).to_contain_text("max_tokens=8")
    assert_accessible(page)


def test_two_models_answer_at_once_and_one_is_asked_again(page: Page, gateway: Gateway) -> None:
    opened(page, gateway, f"?model={DEMO_MODEL.name}")
    limit(page, 9)
    page.get_by_label("Compare with").select_option("fake")
    page.get_by_label("Message").fill("Hello")
    page.get_by_label("Message").press("Enter")
    answers = page.locator(".pg-answer")
    links = answers.get_by_role("link", name="Show request")
    expect(links).to_have_count(2)
    expect(answers.nth(0)).to_contain_text("cluster")
    expect(answers.nth(1)).to_contain_text("pool · desk")
    expect(answers.nth(1).locator(".pg-text")).to_have_text(TEXT)
    answers.nth(1).get_by_label("Lane for retry").select_option("pool")
    answers.nth(1).get_by_role("button", name="Retry in this lane").click()
    expect(links).to_have_count(3)
    expect(answers.nth(2).locator(".pg-text")).to_have_text(TEXT)
    assert_accessible(page)


def test_a_conversation_goes_on_until_a_new_one(desktop: Page, gateway: Gateway) -> None:
    page = desktop
    opened(page, gateway, "?model=fake&prompt=First")
    links = page.locator(".pg-answer").get_by_role("link", name="Show request")
    page.get_by_role("button", name="Send").click()
    expect(links).to_have_count(1)
    page.get_by_label("Message").fill("Second")
    page.get_by_role("button", name="Send").click()
    expect(links).to_have_count(2)
    expect(page.get_by_role("button", name="Retry in this lane")).to_have_count(1)
    page.get_by_label("Message").fill("Third")
    page.get_by_role("button", name="View code").click()
    shown = page.get_by_role("dialog").get_by_role("tabpanel", name="curl")
    for part in ("First", TEXT, "Second", "Third", '"role": "assistant"'):
        expect(shown).to_contain_text(part)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_text("No messages yet")).to_be_visible()
    expect(page.get_by_label("Message")).to_have_value("Third")


def test_an_answer_stops_when_told_to(desktop: Page, gateway: Gateway) -> None:
    page = desktop
    opened(page, gateway, "?model=fake.slow-chunks&prompt=Go")
    page.get_by_role("button", name="Send").click()
    answer = page.get_by_role("group", name="Answer of fake.slow-chunks")
    expect(answer.locator(".pg-text")).to_contain_text("tick tick")
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("stopped")
    link = answer.get_by_role("link", name="Show request")
    expect(link).to_be_visible()
    request_id = str(link.get_attribute("href")).rpartition("/")[2]
    assert gateway.record(request_id)["outcome"] == "interrupted"
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_an_answer_that_breaks_off_says_so_and_keeps_what_came(desktop: Page, gateway: Gateway) -> None:
    page = desktop
    opened(page, gateway, "?model=fake.aborts&prompt=Go")
    page.get_by_role("button", name="Send").click()
    answer = page.get_by_role("group", name="Answer of fake.aborts")
    expect(answer.get_by_role("alert")).to_contain_text("check its state on the Models page.")
    expect(answer.locator(".pg-text")).to_have_text("The mill ")
    expect(answer).to_contain_text("Interrupted")


def test_what_is_refused_is_said_and_what_was_typed_stays(page: Page, gateway: Gateway) -> None:
    opened(page, gateway, f"?model={DEMO_MODEL.name}&lane=pool&prompt=Hello", admin_key(gateway))
    page.get_by_role("button", name="Send").click()
    answer = page.get_by_role("group", name=f"Answer of {DEMO_MODEL.name}")
    expect(answer.get_by_role("alert")).to_contain_text("To fix this:")
    expect(page.get_by_label("Message")).to_have_value("Hello")
    assert_accessible(page)
    page.get_by_text("System prompt, temperature, length").click()
    page.get_by_label("Temperature").fill("3")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Temperature")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#f-temperature-error")).to_contain_text("less than or equal to 2")
    expect(page.get_by_label("Message")).to_have_value("Hello")
    assert_accessible(page)


def test_what_a_backend_puts_into_its_stream_leads_nowhere_and_goes_on_no_longer(
    desktop: Page, gateway: Gateway, spoilt: ProviderServer
) -> None:
    page = desktop
    opened(page, gateway)
    for model, sentence in (("spoilt.links", "Sign in again."), ("spoilt.garbled", "an invalid answer")):
        page.goto(f"{gateway.root}{PLAYGROUND}?model={model}&prompt=Go")
        page.get_by_role("button", name="Send").click()
        answer = page.get_by_role("group", name=f"Answer of {model}")
        expect(answer.get_by_role("alert")).to_contain_text(sentence)
        expect(answer.get_by_role("alert").get_by_role("link")).to_have_count(0)
        expect(answer.locator(".pg-text")).to_have_text("Hm")
        spoilt.wait_until(model, "cancelled")


def test_half_a_character_does_not_end_the_conversation(
    desktop: Page, gateway: Gateway, spoilt: ProviderServer
) -> None:
    page = desktop
    opened(page, gateway, "?model=spoilt.halved&prompt=Go")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".pg-text")).to_have_text(re.compile("^Hm."))
    page.get_by_role("button", name="Stop").click()
    page.get_by_label("Model").select_option("fake")
    page.get_by_label("Message").fill("And now?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("group", name="Answer of fake").locator(".pg-text")).to_have_text(TEXT)


def test_a_wrong_setting_keeps_an_answer_from_being_asked_again_and_nothing_else(
    desktop: Page, gateway: Gateway
) -> None:
    page = desktop
    opened(page, gateway, "?model=fake&prompt=Go")
    page.get_by_role("button", name="Send").click()
    answers = page.locator(".pg-answer")
    expect(answers.get_by_role("link", name="Show request")).to_have_count(1)
    page.get_by_text("System prompt, temperature, length").click()
    page.get_by_label("Temperature").fill("3")
    answers.get_by_role("button", name="Retry in this lane").click()
    expect(page.locator("#f-temperature-error")).to_contain_text("less than or equal to 2")
    expect(answers).to_have_count(1)
    expect(answers.locator(".pg-text")).to_have_text(TEXT)
