"""Pictures of every page for the README: `python -m tests.console.screenshots FOLDER`."""

import contextlib
import itertools
import random
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
from playwright.sync_api import Page

from tests.clusters import DEMO_MODEL
from tests.console.browsing import admin_key, open_browser, open_page, sign_in
from tests.gateways import Gateway, running_gateway

_QUESTIONS = ("Hello", "What is a mill race?", "Count to ten", "Good night", "Why is the sky blue?", "Thanks")
_BEGINS_MS = 60_000
_SETTLES_MS = 4000


def take(folder: Path) -> list[Path]:
    """Every page of a gateway with two nodes that is asked all the while; the overview in dark as well."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as data,
        running_gateway(Path(data)) as gateway,
        open_browser() as browser,
        _asking(gateway),
    ):
        key = admin_key(gateway)
        gateway.cli("credit", "add", "25.00")
        gateway.cli("credit", "grant", "2.00", "--user", "owner", "--days", "90")
        with open_page(browser) as page:
            sign_in(page, gateway, key=key)
            shown = page.locator("#sidebar li a").evaluate_all("links => links.map(link => link.pathname)")
            page.wait_for_timeout(_BEGINS_MS)
            # The first page last: it shows what has been going on.
            taken = [
                _picture(page, gateway.root + path, folder / f"{_name(path)}.png") for path in reversed(shown)
            ]
        with open_page(browser, "dark") as page:
            sign_in(page, gateway, key=key)
            taken.append(_picture(page, f"{gateway.root}/console", folder / "overview-dark.png"))
    return taken


@contextmanager
def _asking(gateway: Gateway) -> Iterator[None]:
    """A user who talks to the demo model, sometimes asks for a model that does not exist, and pauses."""
    is_over = threading.Event()

    def ask() -> None:
        client = gateway.openai()
        for number in itertools.count():
            model = "none-such" if number % 9 == 4 else DEMO_MODEL.name
            question = _QUESTIONS[number % len(_QUESTIONS)]
            with contextlib.suppress(openai.NotFoundError):
                client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": question}], max_tokens=48
                )
            if is_over.wait(random.uniform(0.2, 1.2)):
                return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


def _name(path: str) -> str:
    return path.removeprefix("/console").strip("/") or "overview"


def _picture(page: Page, address: str, target: Path) -> Path:
    page.goto(address)
    if address.endswith("/playground"):
        page.get_by_label("Message").fill("What is a river?")
        page.get_by_role("button", name="Send").click()
    page.wait_for_timeout(_SETTLES_MS)
    page.screenshot(path=target)
    return target


if __name__ == "__main__":
    for picture in take(Path(sys.argv[1])):
        sys.stdout.write(f"{picture}\n")
