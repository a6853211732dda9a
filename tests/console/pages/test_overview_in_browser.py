"""The overview in a browser: in every look, and as it changes."""

import pytest
from playwright.sync_api import Page, expect

from tests.clusters import DEMO_MODEL
from tests.console.browsing import admin_key, assert_accessible, sign_in
from tests.gateways import Gateway


@pytest.mark.browser
def test_it_is_updated_while_it_is_viewed(page: Page, gateway: Gateway) -> None:
    sign_in(page, gateway, "/console", key=admin_key(gateway))
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()
    expect(page.get_by_role("img", name="2 stages")).to_be_visible()
    rows = page.locator("#overview-requests tbody tr")
    expect(rows.first).to_contain_text("cluster: about")
    before = rows.count()
    page.wait_for_selector("body[data-live=on]")
    gateway.openai().chat.completions.create(
        model=DEMO_MODEL.name, messages=[{"role": "user", "content": "And now?"}], max_tokens=4
    )
    expect(rows).to_have_count(min(10, before + 1))
    page.get_by_role("tab", name="By key").click()
    expect(page.locator("#overview-keys")).to_contain_text("first key")
    assert_accessible(page)
