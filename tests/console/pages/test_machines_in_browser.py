"""The pages of machines and models in a real browser: every look, and a machine that joins and takes part."""

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.clusters import DEMO_MODEL
from tests.console.browsing import admin_key, assert_accessible, sign_in
from tests.gateways import Gateway

pytestmark = pytest.mark.browser

CLUSTER = "/console/cluster"
MODELS = "/console/models"


def test_machines_in_every_look(page: Page, gateway: Gateway) -> None:
    sign_in(page, gateway, CLUSTER, key=admin_key(gateway))
    page.wait_for_selector("body[data-live=on]")
    expect(page.get_by_role("img", name="stages").and_(page.locator(":visible"))).to_have_count(1)
    page.get_by_text("Show as a table").click()
    expect(page.get_by_role("cell", name="bottleneck").first).to_be_visible()
    assert_accessible(page)
    page.get_by_role("region", name="Machines", exact=True).get_by_role("link", name="node-1").click()
    expect(page.get_by_role("heading", name="node-1", level=1)).to_be_visible()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("permanently")
    assert_accessible(page)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name="Preview plan without it").click()
    expect(page.get_by_role("heading", name="After")).to_be_visible()
    assert_accessible(page)
    page.goto(f"{gateway.root}{CLUSTER}/add")
    page.get_by_role("button", name="Generate command for this machine").click()
    expect(page.get_by_text("This page updates automatically.")).to_be_visible()
    assert_accessible(page)


def test_a_machine_is_renamed(desktop: Page, gateway: Gateway) -> None:
    page = desktop
    sign_in(page, gateway, CLUSTER, key=admin_key(gateway))
    page.get_by_role("region", name="Machines", exact=True).get_by_role("link", name="node-2").click()
    page.get_by_role("button", name="Rename", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("node-1")
    dialog.get_by_role("button", name="Rename", exact=True).click()
    expect(dialog.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    assert_accessible(page)
    for name in ("the mill", "node-2"):
        if not dialog.is_visible():
            page.get_by_role("button", name="Rename", exact=True).click()
        dialog.get_by_label("Name", exact=True).fill(name)
        dialog.get_by_role("button", name="Rename", exact=True).click()
        expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
        expect(page.locator(".toaster")).to_contain_text(f"renamed to {name}.")
    page.goto(f"{gateway.root}{CLUSTER}")
    expect(page.locator("#cluster-events")).to_contain_text("the mill was renamed to node-2")


def test_models_in_every_look(page: Page, gateway: Gateway) -> None:
    sign_in(page, gateway, MODELS, key=admin_key(gateway))
    page.wait_for_selector("body[data-live=on]")
    expect(page.get_by_text("covers every tensor and file")).to_be_visible()
    page.get_by_role("button", name="Add server").click()
    page.get_by_label("Name", exact=True).fill("my desk")
    page.get_by_label("Address").fill("http://desk:11434")
    page.get_by_role("dialog").get_by_role("button", name="Add server").click()
    # It comes back as it was, open, with what is wrong beside the field.
    expect(page.get_by_label("Name", exact=True)).to_have_value("my desk")
    expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    assert_accessible(page)
    page.goto(f"{gateway.root}{MODELS}")
    assert_accessible(page)
    page.get_by_role("link", name=DEMO_MODEL.name, exact=True).first.click()
    expect(page.get_by_role("table", name="Endpoints serving this model")).to_be_visible()
    assert_accessible(page)
    page.goto(f"{gateway.root}{MODELS}/fit?model={DEMO_MODEL}")
    expect(page.get_by_text("recommended")).to_be_visible()
    assert_accessible(page)


def test_a_third_machine_joins_and_takes_part(desktop: Page, gateway: Gateway, tmp_path: Path) -> None:
    """The command as the page shows it, on the same machine with a folder of its own."""
    page = desktop
    sign_in(page, gateway, f"{CLUSTER}/add", key=admin_key(gateway))
    page.get_by_role("button", name="Generate command for this machine").click()
    words = page.locator(".mr-code code").inner_text().split()[1:]
    program = [sys.executable, "-m", "gateway", *words, "--name", "third", "--data-dir", str(tmp_path)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        page.get_by_role("link", name="Preview plan").click(timeout=60_000)
        expect(page.get_by_text("third: new in the pipeline")).to_be_visible(timeout=60_000)
        page.get_by_role("button", name="Apply plan").click()
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="third", exact=True))
        expect(row.filter(has_text="serving").first).to_be_visible(timeout=90_000)
        expect(page.get_by_text("third is enabled again").first).to_be_visible()
    finally:
        process.terminate()
        process.wait(30)
