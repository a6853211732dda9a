"""What tests of pages need: a signed-in client in process, and a browser in which a page is held to account."""

import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests.gateway.api.conftest import Served
from tests.gateways import Gateway

AXE = Path(__file__).parent / "axe" / "axe.min.js"
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
# Every look that a page has to bear.
LOOKS = [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE), ("dark", PHONE)]

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_CSRF = re.compile(r'<meta name="csrf" content="([0-9a-f]+)">')


# ---------------------------------------------------------------- in process


@dataclass
class Visit:
    """A client that is signed in to an app in process, and posts forms as its pages do."""

    client: httpx.AsyncClient
    user_id: str
    csrf: str = ""

    async def get(self, path: str, **query: Any) -> httpx.Response:
        answer = await self.client.get(path, params=query or None)
        if found := _CSRF.search(answer.text):
            self.csrf = found[1]
        return answer

    async def post(self, path: str, **fields: Any) -> httpx.Response:
        """A form of the page that was last got; its session's field is added. `htmx=True` sends it as a script."""
        is_script = fields.pop("htmx", False)
        if not self.csrf:
            await self.get("/console")
        headers = {"hx-request": "true", "x-csrf": self.csrf} if is_script else {}
        return await self.client.post(path, data={"csrf": self.csrf} | fields, headers=headers)


@asynccontextmanager
async def visiting(
    served: Served, user_id: str = "owner", *, token: str = "", **terms: Any
) -> AsyncIterator[Visit]:
    """A visitor signed in with this key, or with a new one that has admin access if the user may have it."""
    async with served.client({"accept": "text/html"}) as client:
        answer = await client.post("/console/login", data={"key": token or served.key_of(user_id, **terms)})
        assert answer.status_code == 303, answer.text
        yield Visit(client, user_id)


# ---------------------------------------------------------------- in a browser


@dataclass
class Problems:
    """What a browser complained about; some of it may be meant to happen."""

    found: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", lambda said: self.found.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.found.append(str(error)))

    def forgive(self, *parts: str) -> None:
        self.found = [text for text in self.found if not any(part in text for part in parts)]


@contextmanager
def open_browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        yield chromium
        chromium.close()


@contextmanager
def open_page(browser: Browser, theme: Any = "light", viewport: ViewportSize = DESKTOP) -> Iterator[Page]:
    """A page in a browser context of its own; ends with the assertion that it complained about nothing."""
    context = browser.new_context(color_scheme=theme, viewport=viewport, reduced_motion="reduce")
    context.set_default_timeout(60_000)
    page, problems = context.new_page(), Problems()
    problems.watch(page)
    yield page
    context.close()
    # A refused form is a status that the browser reports; nothing else may be.
    problems.forgive(
        "status of 400", "status of 401", "status of 403", "status of 404", "status of 429", "status of 503"
    )
    assert not problems.found, problems.found


def admin_key(gateway: Gateway) -> str:
    """A key of the owner that may administer, which the first one may not."""
    running = DataFolder(gateway.folder).read_running()
    assert running
    wanted = {"name": "browser", "user": "owner", "may_administer": True}
    headers = {HEADER: running["admin_token"]}
    made = httpx.post(f"{gateway.root}/admin/keys", json=wanted, headers=headers, timeout=60, trust_env=False)
    return str(made.raise_for_status().json()["api_key"])


def sign_in(page: Page, gateway: Gateway, path: str = "/console", key: str | None = None) -> None:
    """Go to a page, and sign in on the way there."""
    page.goto(gateway.root + path)
    page.get_by_label("API key").fill(key or gateway.api_key)
    page.keyboard.press("Enter")
    expect(page.locator("#sidebar")).to_be_attached()


@cache
def _axe() -> str:
    return AXE.read_text()


def assert_accessible(page: Page) -> None:
    """No finding of axe's, and nothing beyond the window's edge."""
    page.evaluate(_axe())
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    found = [
        {"rule": broken["id"], "at": [node["target"] for node in broken["nodes"]], "why": broken["help"]}
        for broken in result["violations"]
    ]
    assert not found, json.dumps(found, indent=1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
