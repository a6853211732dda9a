"""Policy: the rules as they hold, a request tried out by the router that decides, and the log of changes."""

import re

import pytest
from playwright.sync_api import Page, expect

from gateway.console.pages.policy.history import changes_of
from gateway.console.pages.policy.rules import CACHING, LEAVING, ROUTING, SPENDING, shown
from gateway.settings import CacheSettings, PolicySettings, Settings
from tests.clusters import DEMO_MODEL
from tests.console.browsing import admin_key, assert_accessible, sign_in, visiting
from tests.gateway.api.conftest import Served
from tests.gateways import Gateway

pytestmark = pytest.mark.anyio

POLICY = "/console/policy"


@pytest.fixture(scope="module")
async def home(served: Served) -> Served:
    users = served.services.directory.users
    users.add("ann")
    users.add_organization("lab")
    users.add("eve", organization="lab", role="admin")
    return served


async def test_each_sees_the_rules_that_are_theirs(home: Served) -> None:
    home.services.keys.issue("roamer", ("cluster", "cloud"), user_id="ann")
    async with visiting(home) as owner, visiting(home, "eve") as eve, visiting(home, "ann") as ann:
        rules = (await owner.get(POLICY)).text
        assert "policy.spend_nano_max" in rules
        assert re.search(r'href="/console/keys\?lane=cloud">1<', rules)
        assert "policy.spend_nano_max" not in (await eve.get(POLICY)).text
        for visit, path, status in (
            (eve, POLICY, 200),
            (eve, f"{POLICY}/history", 200),
            (eve, f"{POLICY}/try", 403),
            (ann, POLICY, 403),
            (ann, f"{POLICY}/history", 403),
        ):
            assert (await visit.get(path)).status_code == status, path


async def test_a_request_is_tried_as_the_router_would_decide(home: Served) -> None:
    async with visiting(home) as owner:
        question = {"model": "nothing-like-it", "prompt_tokens": "50", "privacy": "private"}
        shown = await owner.post(f"{POLICY}/try", **question)
        assert "No backend available" in shown.text
        assert "no lane has this model" in shown.text
        assert 'value="nothing-like-it"' in shown.text
        for field, bad in (("prompt_tokens", "many"), ("more", "{"), ("more", '{"temperature": "hot"}')):
            refused = await owner.post(f"{POLICY}/try", **question | {field: bad})
            assert refused.status_code == 400, bad
            assert re.search(rf'id="f-{field}"[^>]*aria-invalid="true"', refused.text), bad
        gone = await owner.post(f"{POLICY}/try", **question, key="0" * 32)
        assert re.search(r'id="f-key"[^>]*aria-invalid="true"', gone.text)


async def test_history_tells_what_is_other_and_only_to_whom_it_concerns(home: Served) -> None:
    directory = home.services.directory
    directory.users.set_role("ann", "seller")
    async with visiting(home) as owner, visiting(home, "eve") as eve:
        log = (await owner.get(f"{POLICY}/history", action="user.role")).text
        assert re.search(r"<del>member</del>.*seller", log)
        assert "user ann" not in (await eve.get(f"{POLICY}/history")).text
        assert "No matching entries" in (await owner.get(f"{POLICY}/history", actor="user:nobody")).text


def test_only_what_is_other_is_told() -> None:
    found = changes_of({"role": "member", "name": "Ann"}, {"role": "admin", "name": "Ann", "email": None})
    assert [(change.field, change.before, change.after) for change in found] == [("role", "member", "admin")]
    [ends] = changes_of({"expires_ns": None}, {"expires_ns": 86_400 * 10**9})
    assert (ends.field, ends.after) == ("expires", "1970-01-02 00:00 UTC")


def test_settings_are_shown_by_names_that_there_are_and_those_that_were_changed_first() -> None:
    settings = Settings(policy=PolicySettings(spend_nano_max=5 * 10**7), cache=CacheSettings(lasts_s=60))
    every = shown(settings, (*LEAVING, *SPENDING, *CACHING, *ROUTING))
    assert all(setting.description for setting in every)
    values = {setting.name: setting for setting in every}
    assert values["policy.spend_nano_max"].value == "$0.05"
    assert values["cache.lasts_s"].is_shown
    assert not values["cache.entries_max"].is_shown


@pytest.mark.browser
def test_rules_and_a_request_tried_out(page: Page, gateway: Gateway) -> None:
    sign_in(page, gateway, POLICY, key=admin_key(gateway))
    expect(page.get_by_role("heading", name="Policy", level=1)).to_be_visible()
    assert_accessible(page)
    page.goto(f"{gateway.root}{POLICY}/try")
    page.get_by_label("Model", exact=True).fill(DEMO_MODEL.name)
    page.get_by_label("Privacy label").select_option("private")
    page.get_by_role("button", name="Simulate routing").click()
    expect(page.get_by_text("cluster would answer")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("Requested lane").select_option("pool")
    page.get_by_role("button", name="Simulate routing").click()
    expect(page.get_by_text("No backend available")).to_be_visible()
    expect(page.get_by_text("the request asks for the pool lane").first).to_be_visible()
    page.goto(f"{gateway.root}{POLICY}/history")
    expect(page.get_by_text("key.create").first).to_be_visible()
    assert_accessible(page)
