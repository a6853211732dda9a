"""At a desktop of 1280 pixels: nothing is cut, and what is unknown is not drawn as 0."""

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.console.browsing import admin_key, sign_in
from tests.fakes import pool_servers as servers
from tests.gateways import Gateway, until

pytestmark = pytest.mark.browser

# How far each button lies beyond what is seen of the page, or of the table that it scrolls with.
_BEYOND = """() => Math.max(...[...document.querySelectorAll("main button")].map((button) => {
  const box = button.getBoundingClientRect(), seen = button.closest(".mr-scroll")?.getBoundingClientRect();
  return box.width ? box.right - Math.min(innerWidth, seen?.right ?? innerWidth) : 0;
}))"""
# The widest mark of an axis, from what was painted since the script was there.
_PAINTED = """() => {
  window.cut = null;
  const paint = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    if (this.textAlign === "right") window.cut = Math.max(window.cut ?? -1e9, this.measureText(text).width - x);
    return paint.call(this, text, x, y, ...more);
  };
}"""


@pytest.fixture
def server() -> Iterator[servers.FakeServer]:
    """Runs in a loop of its own, beside the browser's."""
    fake, is_over, is_up = servers.vllm(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with servers.running(fake):
            is_up.set()
            await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_up.wait(30)
    yield fake
    is_over.set()
    thread.join(30)


def test_every_button_of_a_servers_row_is_within_the_page(
    desktop: Page, gateway: Gateway, server: servers.FakeServer
) -> None:
    gateway.cli("pool", "scan", f"127.0.0.1:{server.port}", "--add")
    name = f"vllm-127.0.0.1-{server.port}"
    try:
        sign_in(desktop, gateway, "/console/models", key=admin_key(gateway))
        expect(desktop.get_by_role("row", name=name).get_by_role("button", name="Remove")).to_be_visible()
        assert desktop.evaluate(_BEYOND) <= 0
    finally:
        gateway.cli("pool", "remove", name)


def test_no_mark_of_an_axis_is_cut(desktop: Page, gateway: Gateway) -> None:
    sign_in(desktop, gateway, "/console/balance/cost", key=admin_key(gateway))
    desktop.evaluate(_PAINTED)
    desktop.evaluate("document.dispatchEvent(new CustomEvent('mr:theme'))")  # draws every chart again
    until(lambda: desktop.evaluate("window.cut"))
    assert desktop.evaluate("window.cut") <= 0


def test_what_nobody_can_price_is_not_drawn_as_nothing_saved(desktop: Page, gateway: Gateway) -> None:
    sign_in(desktop, gateway, "/console/balance/cost", key=admin_key(gateway))
    chart = desktop.locator("#against-cloud")
    expect(chart.locator("[data-series]").nth(2)).to_have_text(re.compile("savings vs. cloud –$"))
    chart.get_by_role("button", name="Table").click()
    expect(chart.get_by_role("row").nth(1).get_by_role("cell").last).to_have_text("–")


def test_a_request_in_the_drawer_has_an_address(desktop: Page, gateway: Gateway) -> None:
    sign_in(desktop, gateway, "/console/requests", key=admin_key(gateway))
    everything, drawer = desktop.url, desktop.locator("#request-drawer")
    link = desktop.locator("a[data-drawer]").first
    address = gateway.root + str(link.get_attribute("href"))
    link.click()
    expect(drawer).to_be_visible()
    expect(desktop).to_have_url(address)
    desktop.go_back()
    expect(drawer).to_be_hidden()
    expect(desktop).to_have_url(everything)
    desktop.go_forward()
    expect(drawer).to_be_visible()
    desktop.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(desktop).to_have_url(everything)
