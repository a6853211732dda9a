"""Fixtures for the tests of pages: one app in process, one gateway and one browser for each module."""

from collections.abc import AsyncIterator, Iterator

import pytest
from playwright.sync_api import Browser, Page

from cluster.trust.addresses import Target
from gateway.app import create_app, open_services
from gateway.settings import Settings
from tests.clusters import DEMO_MODEL
from tests.console.browsing import LOOKS, open_browser, open_page
from tests.databases import prepared
from tests.gateway.api.conftest import Served
from tests.gateways import Gateway, running_gateway


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Served]:
    """The gateway's app over its real services, without machines or payments."""
    folder = prepared(tmp_path_factory.mktemp("console"))
    async with open_services(Settings(data_dir=folder.path), folder) as services:
        yield Served(services, create_app(services, Target("127.0.0.1", 1)))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """`millrace up` with two nodes and the demo model, which has answered one request."""
    with running_gateway(tmp_path_factory.mktemp("console")) as running:
        raw = running.openai().chat.completions.with_raw_response.create(
            model=DEMO_MODEL.name, messages=[{"role": "user", "content": "Hello"}], max_tokens=5
        )
        running.record(raw.headers["x-request-id"])
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture(params=LOOKS, ids=lambda look: f"{look[0]}-{look[1]['width']}")
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """A page for each look. Ends with the assertion that the browser complained about nothing."""
    theme, viewport = request.param
    with open_page(browser, theme, viewport) as page:
        yield page


@pytest.fixture
def desktop(browser: Browser) -> Iterator[Page]:
    """A page in light on a desktop, for tests that look does not matter to."""
    with open_page(browser) as page:
        yield page


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser's tests last: as long as there is a browser, no other test can have an event loop of its own."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)
