"""Sign-in through an identity provider in a real browser: there and back, over cookies as browsers keep them."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.fakes.oidc_provider import CLIENT_ID, CLIENT_SECRET, oidc_provider
from tests.gateways import running_gateway

pytestmark = pytest.mark.browser


def test_there_and_back_again(browser: Browser, tmp_path: Path) -> None:
    with oidc_provider() as provider:
        settings = {"ISSUER": provider.issuer, "CLIENT_ID": CLIENT_ID, "CLIENT_SECRET": CLIENT_SECRET}
        variables = {f"IDENTITY__OIDC_{name}": value for name, value in settings.items()}
        with running_gateway(tmp_path, model=None, settings=variables) as gateway:
            gateway.cli("users", "add", "ann", "--email", "ann@example.org")
            page = browser.new_context().new_page()
            page.goto(f"{gateway.root}/console")
            page.get_by_role("link", name="Sign in through your organization").click()
            expect(page.get_by_role("heading", name="Overview")).to_be_visible()
            expect(page.get_by_role("navigation", name="Console")).to_contain_text("ann")
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_label("API key")).to_be_visible()
            page.context.close()
