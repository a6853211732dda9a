"""Prices and further names of models, set in a browser, in every look."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from playwright.sync_api import Page, expect

from tests.console.browsing import admin_key, assert_accessible, sign_in
from tests.fakes import pool_servers as servers
from tests.gateways import Gateway, running_gateway

MODEL = "qwen3:8b"


@pytest.fixture(scope="module")
def ollama() -> Iterator[servers.FakeServer]:
    """On a loop of its own: the browser's tests have none."""
    server = servers.ollama()
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        is_over = asyncio.Event()
        async with servers.running(server):
            begun.set_result((asyncio.get_running_loop(), is_over))
            await is_over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, is_over = begun.result(10)
    yield server
    loop.call_soon_threadsafe(is_over.set)
    thread.join(60)


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory, ollama: servers.FakeServer) -> Iterator[Gateway]:
    """A gateway with a model of a provider and a server of the pool."""
    backend = {"name": "desk", "base_url": ollama.base_url, "kind": "ollama"}
    settings = {
        "CLOUD__MODELS": json.dumps({"fast": {"model": "openai/gpt-4o-mini"}}),
        "POOL__BACKENDS": json.dumps([backend]),
    }
    with running_gateway(tmp_path_factory.mktemp("priced"), model=None, settings=settings) as running:
        yield running


@pytest.mark.browser
def test_a_price_is_set_and_taken_back(page: Page, priced: Gateway) -> None:
    sign_in(page, priced, "/console/models/of?model=fast", key=admin_key(priced))
    expect(page.locator("#price")).to_contain_text("From the price list litellm")
    page.get_by_label("Input (USD)").fill("cheap")
    page.get_by_role("button", name="Set price").click()
    expect(page.locator(".mr-error")).to_be_visible()
    expect(page.get_by_label("Input (USD)")).to_have_value("cheap")
    assert_accessible(page)
    page.get_by_label("Input (USD)").fill("0.20")
    page.get_by_label("Output (USD)").fill("0.90")
    page.get_by_role("button", name="Set price").click()
    expect(page.locator("#price")).to_contain_text("Set by owner")
    expect(page.locator(".mr-stats")).to_contain_text("$0.20 / $0.90")
    assert_accessible(page)
    page.get_by_role("button", name="Use list price").click()
    page.get_by_role("dialog").get_by_role("button", name="Use list price").click()
    expect(page.locator("#price")).to_contain_text("From the price list litellm")


@pytest.mark.browser
def test_another_name_is_set_and_taken_away(page: Page, priced: Gateway) -> None:
    sign_in(page, priced, f"/console/models/of?model={MODEL}", key=admin_key(priced))
    page.get_by_label("Alias").fill("mini")
    page.get_by_role("button", name="Set alias").click()
    row = page.locator("#names tbody tr", has_text="mini")
    expect(row).to_contain_text(MODEL)
    assert_accessible(page)
    page.goto(f"{priced.root}/console/models")
    expect(page.get_by_role("link", name="mini", exact=True).first).to_be_visible()
    assert_accessible(page)
    page.goto(f"{priced.root}/console/models/of?model={MODEL}")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove alias").click()
    expect(page.locator("#names")).to_contain_text("None yet.")
