"""Selling in a real browser: the wizard in every look, a real agent that its last page waits for, all pages."""

import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import create_engine, insert

from market.marketplace.sellers import proof_message
from market.protocol.channels.terms import ChannelTerms
from market.protocol.records.envelope import open_record
from market.seller.store import metadata, sales
from runtime.data_folder import ADMIN_HEADER, DataFolder
from tests.clusters import DEMO_MODEL
from tests.console.browsing import admin_key, assert_accessible, sign_in
from tests.gateways import Gateway, running_gateway
from tests.market.marketplace.rules.dealing import Dealing
from tests.market.parties import id_of, key_of

pytestmark = pytest.mark.browser

SELLING = "/console/selling"
MARKETPLACE = {
    "MARKETPLACE__ENABLED": "true",
    "MARKETPLACE__TICK_S": "1",
    "MARKETPLACE__ALLOWS_LOOPBACK": "true",
}
# Settings for a test only: buyers, marketplace and agent are all on this machine.
_FILE = "# kept\n[selling]\nallows_loopback = true\n"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A marketplace whose own machines have answered a few streamed requests."""
    folder = tmp_path_factory.mktemp("selling")
    (folder / "millrace.toml").write_text(_FILE)
    with running_gateway(folder, settings=MARKETPLACE) as running:
        for _ in range(3):
            chunks = running.openai().chat.completions.create(
                model=DEMO_MODEL.name,
                messages=[{"role": "user", "content": "Count to ten"}],
                max_tokens=24,
                stream=True,
            )
            for _chunk in chunks:
                pass
        yield running


@contextmanager
def agent(gateway: Gateway) -> Iterator[None]:
    """`millrace sell`, as the wizard's last page says it."""
    command = [sys.executable, "-m", "gateway", "sell", "--data-dir", str(gateway.folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Trade:
    """Sam, who sells here as a third party's agent would, and the allocation that Ann has reserved for it."""

    sams_key: str
    allocation: str


@pytest.fixture(scope="module")
def trade(gateway: Gateway) -> Trade:
    """One request that both have signed for, and one that the buyer signed for less of."""
    running = DataFolder(gateway.folder).read_running()
    assert running
    machine = {ADMIN_HEADER: running["admin_token"]}

    def ask(path: str, headers: dict[str, str], **body: Any) -> Any:
        once = {"idempotency-key": uuid.uuid4().hex}
        answer = httpx.post(
            f"{gateway.root}{path}", json=body, headers=headers | once, timeout=60, trust_env=False
        )
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def person(user: str, role: str, lanes: list[str]) -> dict[str, str]:
        ask("/admin/users", machine, user=user, role=role)
        key = ask("/admin/keys", machine, name=user, user=user, lanes=lanes)["api_key"]
        ask("/accounting/v1/credits", machine, user=user, amount="5.00", reason="a test")
        return {"authorization": f"Bearer {key}"}

    ann, sam = person("ann", "member", ["market"]), person("sam", "seller", ["cluster"])
    instance = httpx.get(f"{gateway.root}/market/v1/marketplace", timeout=60, trust_env=False).json()["identity"]
    signer = key_of("seller")
    proof = signer.sign(proof_message(instance, "sam")).hex()
    named = {"identity": id_of("seller"), "key": signer.public_key.hex()}
    ask("/market/v1/sellers", sam, **named, proof=proof)
    wanted = {"buyer": id_of("buyer"), "seller": id_of("seller"), "limit": "2.00"}
    raw = ask("/market/v1/allocations", ann, **wanted)["allocation"]
    digest = open_record(raw.encode()).digest
    dealing = Dealing(ChannelTerms(id_of("buyer"), id_of("seller"), digest))
    dealing.serve(0, 10_000_000, 5_000)
    dealing.serve(1, 0, 1_000, tells=5_000)
    ask("/market/v1/settlements", {}, allocation=raw, records=[record.raw.decode() for record in dealing.records])
    return Trade(sam["authorization"].removeprefix("Bearer "), digest)


def test_a_sellers_pages_in_every_look(page: Page, gateway: Gateway, trade: Trade) -> None:
    sign_in(page, gateway, SELLING, key=trade.sams_key)
    page.wait_for_selector("body[data-live=on]")
    expect(page.get_by_role("region", name="Open allocations")).to_contain_text("$2.00")
    expect(page.get_by_role("link", name="Marketplace", exact=True)).to_have_count(0)
    assert_accessible(page)
    page.goto(f"{gateway.root}{SELLING}/earnings")
    expect(page.get_by_role("region", name="Pending earnings")).to_contain_text("becomes available")
    expect(page.get_by_role("region", name="Statement")).to_contain_text("draw")
    assert_accessible(page)
    page.goto(f"{gateway.root}{SELLING}/standing")
    assert_accessible(page)
    page.get_by_role("link", name="Open dispute").click()
    answer, too_long = page.get_by_label("Delivered answer"), "the mill grinds " * 2_600
    answer.fill(too_long)
    page.get_by_role("button", name="Open dispute").click()
    # Refused, with everything that was typed still there.
    expect(answer).to_have_attribute("aria-invalid", "true")
    expect(answer).to_have_value(too_long)
    assert_accessible(page)


def test_the_wizard_in_every_look(page: Page, gateway: Gateway) -> None:
    # Without the marketplace key that an earlier look has saved.
    (gateway.folder / "millrace.toml").write_text(_FILE)
    sign_in(page, gateway, SELLING, key=admin_key(gateway))
    expect(page.get_by_role("heading", name="Selling", level=1)).to_be_visible()
    assert_accessible(page)
    page.get_by_role("navigation", name="Selling", exact=True).get_by_role(
        "link", name="List idle capacity"
    ).click()
    expect(page.get_by_text("measured:")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Next").click()
    page.get_by_label("Idle after (minutes)").fill("0")
    page.get_by_label("Hours", exact=True).select_option("hours")
    page.get_by_label("From", exact=True).fill("00:00")
    page.get_by_label("Until", exact=True).fill("00:00")
    assert_accessible(page)
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("times power cost plus fee")).to_be_visible()
    page.get_by_label("Input price (USD)").fill("many")
    page.get_by_label("Output price (USD)").fill("0.20")
    page.get_by_role("button", name="Next").click()
    # Back where it is wrong, with what was typed.
    expect(page.get_by_label("Input price (USD)")).to_have_value("many")
    expect(page.get_by_label("Input price (USD)")).to_have_attribute("aria-invalid", "true")
    assert_accessible(page)
    page.get_by_label("Input price (USD)").fill("0.05")
    page.get_by_role("button", name="Next").click()
    page.get_by_label("Connectivity").select_option("none")
    page.get_by_label("Marketplace", exact=True).fill(gateway.root)
    assert_accessible(page)
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("Ready to list once you enter your marketplace key", exact=True)).to_be_visible()
    assert_accessible(page)
    # A step can be gone back to, and has what was answered.
    page.get_by_role("link", name="Price").click()
    expect(page.get_by_label("Input price (USD)")).to_have_value("0.05")
    page.go_back()
    page.get_by_label("Marketplace key").fill(gateway.api_key)
    page.get_by_role("button", name="Save to millrace.toml").click()
    expect(page.get_by_role("heading", name="Start selling")).to_be_visible()
    expect(page.get_by_text("Start it with the command above.")).to_be_visible()
    assert_accessible(page)
    text = (gateway.folder / "millrace.toml").read_text()
    assert text.startswith("# kept\n")
    assert tomllib.loads(text)["selling"]["models"][0]["prompt_usd_per_mtok"] == "0.05"


def test_the_last_page_waits_for_the_agent(desktop: Page, gateway: Gateway) -> None:
    page = desktop
    sign_in(page, gateway, f"{SELLING}/started", key=admin_key(gateway))
    page.wait_for_selector("body[data-live=on]")
    expect(page.get_by_text("Start it with the command above.")).to_be_visible()
    with agent(gateway):
        expect(page.get_by_text("Buyers can now use it.")).to_be_visible(timeout=60_000)
        page.get_by_role("link", name="Now").first.click()
        listings = page.get_by_role("region", name="Listings")
        expect(listings).to_contain_text("$0.05")
        expect(listings).to_contain_text("listed")
        page.wait_for_selector("body[data-live=on]")
        page.get_by_role("button", name="Pause selling").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause", exact=True).click()
        expect(page.get_by_text("An operator paused selling")).to_be_visible()
        expect(page.locator("#selling-listings")).to_contain_text("withdrawn", timeout=30_000)
        page.get_by_role("button", name="Resume selling").click()
        expect(page.locator("#selling-agent")).to_contain_text("listed", timeout=30_000)


def test_every_page_in_every_look(page: Page, gateway: Gateway, trade: Trade) -> None:
    """While the agent sells, after it has registered its owner at the marketplace."""
    with agent(gateway):
        sign_in(page, gateway, SELLING, key=admin_key(gateway))
        page.wait_for_selector("body[data-live=on]")
        expect(page.locator("#selling-listings")).to_contain_text(DEMO_MODEL.name, timeout=30_000)
        assert_accessible(page)
        for path, shown in (
            ("earnings", "Payments are not set up"),
            ("standing", "No audit proves that a model is the one"),
            ("marketplace", "decides by rule"),
        ):
            page.goto(f"{gateway.root}{SELLING}/{path}")
            expect(page.get_by_text(shown).first).to_be_visible()
            assert_accessible(page)
        expect(page.get_by_role("region", name="Allocations", exact=True)).to_contain_text("ann")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="owner", exact=True))
        row.get_by_role("button", name="Forfeit").click()
        expect(page.get_by_role("dialog")).to_contain_text("cannot be undone")
        assert_accessible(page)
        page.get_by_role("button", name="Cancel").click()
        row.get_by_role("button", name="Suspend", exact=True).click()
        page.get_by_role("dialog").get_by_label("Reason").fill("a test")
        page.get_by_role("dialog").get_by_role("button", name="Suspend", exact=True).click()
        expect(row).to_contain_text("a test")
        row.get_by_role("button", name="Reinstate").click()
        expect(row).not_to_contain_text("a test")
        assert_accessible(page)


def sell(gateway: Gateway, *models: str) -> None:
    """As if the agent had sold, once each."""
    folder = DataFolder(gateway.folder).market
    folder.mkdir(mode=0o700, exist_ok=True)
    engine = create_engine(f"sqlite:///{folder}/selling.db")
    metadata.create_all(engine)
    made: dict[str, Any] = {
        "lane": 0,
        "amount_nano": 1_230_000,
        "is_booked": True,
        "made_ms": time.time_ns() // 10**6,
    }
    with engine.begin() as connection:
        for model in models:
            connection.execute(insert(sales).values(channel=uuid.uuid4().hex, seq=1, model=model, **made))
    engine.dispose()


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway that sells what an agent would."""
    with running_gateway(tmp_path_factory.mktemp("first-sales")) as running:
        yield running


def test_the_first_sale_of_a_listing_is_told_once(desktop: Page, beside: Gateway) -> None:
    """Where one looks, on whichever page; not again when the page is reloaded, nor with the next sale."""
    first, second = f"demo/{uuid.uuid4().hex[:8]}", f"<b>{uuid.uuid4().hex[:8]}"
    page, toasts, toaster = desktop, desktop.locator("#toaster .toast"), desktop.locator("#toaster")
    sign_in(page, beside, SELLING, key=admin_key(beside))
    page.wait_for_selector("body[data-live=on]")
    expect(toaster).to_have_attribute("aria-live", "polite")
    expect(toasts).to_have_count(0)
    sell(beside, first)
    mine = toasts.filter(has_text=f"First sale of {first}")
    expect(mine).to_contain_text("$0.0012", timeout=30_000)
    assert_accessible(page)
    said = page.locator(f"#news [data-news='listing {first}']")
    sell(beside, first)
    page.reload()
    expect(said).to_be_attached(timeout=30_000)
    expect(toasts).to_have_count(0)
    # On another page as well, and a listing's name is text.
    page.goto(f"{beside.root}/console/cluster")
    expect(said).to_be_attached(timeout=30_000)
    sell(beside, second)
    expect(toasts).to_have_count(1, timeout=30_000)
    expect(toasts).to_contain_text(f"First sale of {second}")
    toasts.get_by_role("link", name="Show sales").click()
    expect(page.get_by_role("heading", name="Selling", level=1)).to_be_visible()
