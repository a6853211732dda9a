"""Balance in a browser: credits are bought on Stripe's page and come when it says so; every page in every look."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.console.browsing import admin_key, assert_accessible, sign_in
from tests.fakes.stripe import paying
from tests.journeys.test_money import Market, open_market

pytestmark = pytest.mark.browser

BALANCE = "/console/balance"


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    """A gateway with payments of a fake Stripe; ann has spent a bit, and has a budget."""
    with open_market(tmp_path_factory.mktemp("balance")) as market:
        market.gateway.cli("credit", "add", "5.00", "--user", "ann", "--note", "welcome")
        market.gateway.cli("credit", "grant", "2.00", "--user", "ann", "--days", "30", "--note", "for trying out")
        market.gateway.cli("credit", "add", "40.00", "--pool", "home", "--note", "the year's budget")
        market.gateway.cli("budget", "set", "user:ann", "50")
        raw = market.gateway.openai(market.api_key).chat.completions.create(
            model="gpt", messages=[{"role": "user", "content": "Hello"}], max_tokens=5
        )
        assert raw.choices
        yield market


def _stripes_page(route: Route) -> None:
    route.fulfill(body="<title>Stripe</title><h1>Pay</h1>", content_type="text/html")


def test_credits_are_bought_and_come_when_stripe_says_so(page: Page, market: Market) -> None:
    page.route("https://checkout.stripe.test/**", _stripes_page)
    sign_in(page, market.gateway, f"{BALANCE}/topups", key=market.api_key)
    expect(page.get_by_text("TEST MODE")).to_be_visible()
    page.locator("input[name=amount]").first.evaluate("radio => (radio.value = '7.00')")
    page.get_by_role("button", name="Go to payment").click()
    expect(page.locator("#f-amount-error")).to_contain_text("Top-ups are offered in these amounts")
    page.get_by_text("$26.38 to pay").click()
    assert_accessible(page)
    page.get_by_role("button", name="Go to payment").click()
    page.wait_for_url("https://checkout.stripe.test/**")
    with market.stripe.lock:
        session = [each for each in market.stripe.state.all("checkout.session") if each["status"] == "open"][-1]
        paying.pay_session(market.stripe.state, session["id"])
    back = str(session["success_url"]).replace("{CHECKOUT_SESSION_ID}", session["id"])
    page.goto(market.gateway.root + back[back.index("/console") :])
    expect(page.locator("#paid-state")).to_contain_text("awaiting confirmation")
    assert_accessible(page)
    page.wait_for_selector("body[data-live=on]")
    market.deliver()
    expect(page.locator("#paid-state")).to_contain_text("of credits added")
    page.get_by_role("link", name="Open balance").click()
    expect(page.locator("#balance-newest")).to_contain_text("top-up")
    page.wait_for_selector("body[data-live=on]")
    assert_accessible(page)


@pytest.mark.parametrize("path", ["/statement", "/budgets", "/cost", "/cost?by=key"])
def test_pages_of_a_member_are_there_for_everybody(page: Page, market: Market, path: str) -> None:
    sign_in(page, market.gateway, BALANCE + path, key=market.api_key)
    expect(page.locator("#main table, #main .mr-empty").first).to_be_visible()
    assert_accessible(page)


def test_an_admin_manages_credits_the_ledger_and_payments(page: Page, market: Market) -> None:
    sign_in(page, market.gateway, f"{BALANCE}/users", key=admin_key(market.gateway))
    expect(page.get_by_role("link", name="ann", exact=True)).to_be_visible()
    assert_accessible(page)
    page.goto(f"{market.gateway.root}{BALANCE}/credits?to=user:ann")
    give = page.locator("form[action$='/credits/give']")
    give.get_by_label("Amount (USD)").fill("1,50")
    give.get_by_label("Reason on statement").fill("a transfer")
    give.get_by_role("button", name="Give credits").click()
    asked = page.get_by_role("dialog", name="Are you sure?")
    expect(asked).to_contain_text("Give $1,50 of credits to ann?")
    assert_accessible(page)
    asked.get_by_role("button", name="Cancel").click()
    expect(asked).to_be_hidden()
    give.get_by_role("button", name="Give credits").click()
    asked.get_by_role("button", name="Give credits").click()
    expect(give.get_by_label("Amount (USD)")).to_have_attribute("aria-invalid", "true")
    assert_accessible(page)
    give.get_by_label("Amount (USD)").fill("1.50")
    give.get_by_role("button", name="Give credits").click()
    asked.get_by_role("button", name="Give credits").click()
    expect(page.locator(".toaster")).to_contain_text("ann received $1.50")
    page.goto(f"{market.gateway.root}{BALANCE}/ledger")
    page.get_by_role("button", name="Verify ledger").click()
    expect(page.locator("#verdict")).to_contain_text("Verified", timeout=60_000)
    assert_accessible(page)
    page.goto(f"{market.gateway.root}{BALANCE}/payments")
    page.get_by_role("button", name="Compare with Stripe").click()
    expect(page.locator("#unmatched")).to_contain_text("compared")
    assert_accessible(page)
    page.goto(f"{market.gateway.root}{BALANCE}/cost")
    expect(page.locator("#against-cloud")).to_be_visible()
    page.locator("#against-cloud").get_by_role("button", name="Table").click()
    expect(page.locator("#against-cloud table")).to_contain_text("savings vs. cloud")
    assert_accessible(page)
