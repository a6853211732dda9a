"""The console in a real browser: sign in, see machines and requests with their reasons, at any width."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.clusters import DEMO_MODEL
from tests.gateways import Gateway, running_gateway

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("console")) as running:
        raw = running.openai().chat.completions.with_raw_response.create(
            model=DEMO_MODEL.name, messages=[{"role": "user", "content": "Hello"}], max_tokens=5
        )
        running.record(raw.headers["x-request-id"])
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    context.close()
    # A refused sign-in is a 401, which the browser reports; nothing else may be.
    assert not [problem for problem in problems if "401" not in problem]


def sign_in(page: Page, gateway: Gateway) -> None:
    page.goto(f"{gateway.root}/console")
    page.get_by_label("API key").fill(gateway.api_key)
    page.get_by_role("button", name="Sign in").click()


def test_sign_in_see_and_sign_out(page: Page, gateway: Gateway, tmp_path: Path) -> None:
    sign_in(page, gateway)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_text(f"{gateway.root}/v1")).to_be_visible()
    machines = page.get_by_role("list").get_by_role("listitem")
    expect(machines).to_have_count(2)
    expect(machines.first).to_contain_text("layers 0")
    expect(machines.first).to_contain_text("head")
    row = page.get_by_role("row").filter(has_text="200 complete")
    expect(row).to_contain_text("cluster: about")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_wrong_key_is_told(page: Page, gateway: Gateway) -> None:
    page.goto(f"{gateway.root}/console")
    page.get_by_label("API key").fill("mr-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This key is not valid here.")


def test_a_session_dies_with_its_key(page: Page, gateway: Gateway) -> None:
    token = gateway.new_key("short", "cluster")
    page.goto(f"{gateway.root}/console")
    page.get_by_label("API key").fill(token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    gateway.cli("key", "revoke", token[:10])
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()
