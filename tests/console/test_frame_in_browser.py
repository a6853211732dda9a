"""The frame in a real browser: every look, by keyboard, live, and what happens when a session ends."""

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

from cluster.trust.addresses import Target
from gateway.app import Services, create_app, open_services
from gateway.identity.audit import MACHINE
from gateway.settings import Settings
from tests.console.browsing import assert_accessible, open_page
from tests.console.example_page import Ticking, example_page
from tests.databases import prepared
from tests.gateway.api.conftest import Served

pytestmark = pytest.mark.browser

MODELS = "/console/models"


@dataclass
class Shown:
    """The app with the example page, behind a port."""

    root: str
    services: Services
    ticking: Ticking
    key: str

    def sign_in(self, page: Page, path: str = MODELS) -> None:
        page.goto(self.root + path)
        page.get_by_label("API key").fill(self.key)
        page.keyboard.press("Enter")
        expect(page.locator("#sidebar")).to_be_attached()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    listening = socket.create_server(("127.0.0.1", 0))
    folder = prepared(tmp_path_factory.mktemp("frame"))
    servers: list[uvicorn.Server] = []
    found: list[Services] = []
    begun = threading.Event()

    async def serve() -> None:
        async with open_services(Settings(data_dir=folder.path), folder) as services:
            app = create_app(services, Target("127.0.0.1", 1))
            servers.append(uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error")))
            found.append(services)
            begun.set()
            await servers[0].serve(sockets=[listening])

    with example_page() as ticking:
        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        assert begun.wait(30)
        key = Served(found[0], None).key_of("owner")
        yield Shown(f"http://127.0.0.1:{listening.getsockname()[1]}", found[0], ticking, key)
        found[0].preemptible_jobs.close()
        servers[0].should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def test_every_look_bears_examination(page: Page, shown: Shown) -> None:
    page.goto(shown.root + MODELS)
    assert_accessible(page)
    shown.sign_in(page)
    page.wait_for_selector("body[data-live=on]")
    expect(page.locator(".mr-plot canvas")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Table").click()
    expect(page.get_by_role("region", name="Load, table").get_by_role("row")).to_have_count(3)
    page.get_by_role("button", name="Drop").click()
    expect(page.get_by_role("dialog", name="Drop it?")).to_be_visible()
    assert_accessible(page)
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.goto(f"{shown.root}/console/nope")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    assert_accessible(page)


def test_what_is_shown_follows_what_happens(desktop: Page, shown: Shown) -> None:
    shown.ticking.text = "before"
    shown.sign_in(desktop)
    expect(desktop.get_by_text("Now: before")).to_be_visible()
    desktop.get_by_label("Name").fill("half typed")
    shown.ticking.text = "after"
    expect(desktop.get_by_text("Now: after")).to_be_visible()
    expect(desktop.get_by_label("Name")).to_have_value("half typed")
    expect(desktop.locator(".mr-legend")).to_contain_text("cluster 3")
    desktop.get_by_role("button", name="Table").click()
    shown.ticking.points = [[3.0, 41, 7]]
    newest = desktop.get_by_role("region", name="Load, table").get_by_role("row").nth(1)
    expect(newest).to_contain_text("41")


def test_a_page_says_when_it_is_not_live(desktop: Page, shown: Shown) -> None:
    shown.sign_in(desktop)
    desktop.wait_for_selector("body[data-live=on]")
    desktop.route("**/console/models/live", lambda route: route.fulfill(status=503))
    desktop.reload()
    expect(desktop.locator("#live-state")).to_have_text(
        re.compile(r"Connection lost. Figures are from \d\d:\d\d:\d\d")
    )
    figures = desktop.locator(".mr-main > :not(.mr-head, form)").first
    faded = "figure => getComputedStyle(figure).opacity"
    assert figures.evaluate(faded) == "0.55", "nobody takes them for what is now"
    desktop.unroute("**/console/models/live")
    desktop.locator(".mr-live").dispatch_event("mr:again")
    expect(desktop.locator("#live-state")).to_be_empty()
    assert figures.evaluate(faded) == "1"
    desktop.context.set_offline(True)
    expect(desktop.locator("#live-state")).to_contain_text("Connection lost")
    desktop.context.set_offline(False)
    expect(desktop.locator("#live-state")).to_be_empty()


def test_what_scripts_ask_for_is_put_in_its_place_and_what_fails_is_said(desktop: Page, shown: Shown) -> None:
    shown.sign_in(desktop)
    part, said = desktop.locator("#part"), desktop.locator("#toaster")
    desktop.get_by_role("button", name="Ask", exact=True).click()
    expect(part).to_have_text("Now: <part>")
    expect(said.get_by_role("status")).to_have_text("Saved <it>.")
    desktop.get_by_role("button", name="Ask wrongly").click()
    expect(said.get_by_role("alert")).to_have_text("There is nothing of owner's.")
    expect(part).to_have_text("Now: <part>")


def test_the_theme_that_was_chosen_stays(desktop: Page, shown: Shown) -> None:
    shown.sign_in(desktop)
    html = desktop.locator("html")
    expect(html).not_to_have_class("dark")
    desktop.get_by_role("button", name="Dark").click()
    expect(html).to_have_class("dark")
    desktop.reload()
    expect(html).to_have_class("dark")
    desktop.get_by_role("button", name="System").click()
    expect(html).not_to_have_class("dark")
    desktop.emulate_media(color_scheme="dark")
    expect(html).to_have_class("dark")


def test_a_keyboard_is_enough(desktop: Page, shown: Shown) -> None:
    shown.sign_in(desktop)
    desktop.keyboard.press("Tab")
    expect(desktop.get_by_role("link", name="Skip to content")).to_be_focused()
    desktop.keyboard.press("Enter")
    expect(desktop.locator("#main")).to_be_focused()
    desktop.get_by_role("tab", name="First").focus()
    desktop.keyboard.press("ArrowRight")
    expect(desktop.get_by_text("Panel b")).to_be_visible()
    desktop.get_by_label("Name").fill("ab")
    desktop.get_by_label("Slots").fill("0")
    desktop.keyboard.press("Enter")
    expect(desktop.get_by_label("Name")).to_be_focused()
    expect(desktop.get_by_label("Slots")).to_have_value("0")
    expect(desktop.get_by_label("Slots")).to_have_accessible_description(
        "Input should be greater than or equal to 1."
    )


def test_a_phone_has_a_menu(browser: Browser, shown: Shown) -> None:
    with open_page(browser, viewport={"width": 390, "height": 844}) as page:
        shown.sign_in(page)
        overview = page.get_by_role("link", name="Overview")
        expect(overview).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        expect(overview).to_be_visible()
        page.keyboard.press("Escape")
        expect(overview).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        overview.click()
        expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


def test_a_session_that_ends_leads_to_the_sign_in_and_back(desktop: Page, shown: Shown) -> None:
    shown.sign_in(desktop, f"{MODELS}?lane=cloud")
    desktop.get_by_label("Name").fill("mill")
    desktop.get_by_label("Price").fill("1.00")
    shown.services.directory.sessions.close_all("owner", MACHINE)
    # Its stream may find out before the form does, and goes there, too.
    desktop.get_by_role("button", name="Create").or_(desktop.get_by_role("button", name="Sign in")).click()
    desktop.get_by_label("API key").fill("mr-wrong")
    desktop.keyboard.press("Enter")
    expect(desktop.get_by_role("alert")).to_have_text("Invalid API key.")
    desktop.get_by_label("API key").fill(shown.key)
    desktop.keyboard.press("Enter")
    expect(desktop).to_have_url(f"{shown.root}{MODELS}?lane=cloud")
    expect(desktop.get_by_label("Name")).to_have_value("mill")
    expect(desktop.get_by_label("Price")).to_have_value("1.00")
    expect(desktop.get_by_text("Your input was restored; nothing was sent.")).to_be_visible()
    desktop.reload()
    expect(desktop.get_by_label("Name")).to_have_value("llama")
    expect(desktop.get_by_label("Price")).to_have_value("")
