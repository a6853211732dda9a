"""Keys & users: who sees and does what, in process; and the way to a new key in a real browser."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.sync_api import Page, expect

from gateway.console.browser import COOKIE
from gateway.identity.audit import MACHINE, Filter
from gateway.quota import Quota
from tests.console.browsing import Visit, admin_key, assert_accessible, sign_in, visiting
from tests.gateway.api.conftest import Served
from tests.gateways import Gateway

pytestmark = pytest.mark.anyio

KEYS = "/console/keys"


@pytest.fixture(scope="module")
async def home(served: Served) -> Served:
    """Ann is a member of organization home, eve an admin of another organization where bob is, too."""
    users = served.services.directory.users
    users.add("ann", name="Ann <b>")
    users.add_organization("lab", "The lab")
    users.add("eve", organization="lab", role="admin")
    users.add("bob", organization="lab")
    return served


@pytest.fixture
async def owner(home: Served) -> AsyncIterator[Visit]:
    async with visiting(home, "owner") as visit:
        yield visit


async def test_a_key_is_made_limited_changed_rotated_and_revoked(home: Served, owner: Visit) -> None:
    keys = home.services.keys
    wanted = {
        "name": "notebook",
        "user": "ann",
        "lanes": ["cluster", "cloud"],
        "models": "small, big",
        "spend": "5",
    }
    bad = await owner.post(f"{KEYS}/new", **wanted | {"spend": "5 dollars", "priority": "-1"})
    assert bad.status_code == 400
    assert 'value="small, big"' in bad.text, "nothing that was typed is lost"
    bad = await owner.post(f"{KEYS}/new", **wanted | {"spend": "5 dollars"})
    assert re.search(r'id="f-spend"[^>]*aria-invalid="true"', bad.text)
    assert not [row for row in keys.rows(user_id="ann") if row.name == "notebook"]
    assert 'aria-describedby="f-lanes-error' in (await owner.post(f"{KEYS}/new", name="x", user="ann")).text
    made = await owner.post(f"{KEYS}/new", **wanted)
    token = re.search(r"mr-[A-Za-z0-9_-]{43}", made.text)
    assert token
    caller = keys.find(token[0])
    assert caller
    assert (caller.user_id, sorted(caller.lanes), sorted(caller.models or ())) == (
        "ann",
        ["cloud", "cluster"],
        ["big", "small"],
    )
    assert caller.quotas == (Quota(f"key:{caller.key_id}", "spend", 5 * 10**9, "month"),)
    path = f"{KEYS}/key/{caller.key_id}"
    shown = await owner.get(path)
    assert token[0] not in shown.text
    assert "of $5.00" in shown.text
    changed = await owner.post(
        f"{path}/change", lanes="cluster", privacy="private", expires_in_s="2592000", priority="3"
    )
    assert changed.status_code == 303
    row = keys.row(caller.key_id)
    assert (row.lanes, row.terms.privacy, row.terms.models) == (("cluster",), "private", None)
    assert row.terms.expires_ns
    rotated = await owner.post(f"{path}/rotate", grace_hours="0")
    assert keys.find(token[0]) is None
    new = re.search(r"mr-[A-Za-z0-9_-]{43}", rotated.text)
    assert new
    assert keys.find(new[0])
    assert (await owner.post(f"{path}/revoke")).status_code == 303
    assert keys.find(new[0]) is None
    log = home.services.directory.audit.entries(Filter(target=f"key:{caller.key_id}"))
    assert {entry.actor for entry in log} == {"user:owner"}
    assert [entry.action for entry in reversed(log)] == [
        "key.create",
        "quota.set",
        "key.change",
        "key.rotate",
        "key.revoke",
    ]


async def test_everybody_sees_and_does_what_is_theirs(home: Served, owner: Visit) -> None:
    keys = home.services.keys
    anns, bobs = keys.issue("anns", ("cluster",), user_id="ann"), keys.issue("bobs", ("cluster",), user_id="bob")
    async with visiting(home, "ann") as ann, visiting(home, "eve") as eve:
        shown = (await ann.get(KEYS)).text
        assert ("anns" in shown, "bobs" in shown) == (True, False)
        shown = (await eve.get(KEYS)).text
        assert ("anns" in shown, "bobs" in shown) == (False, True)
        for visit, path, status in (
            (ann, f"{KEYS}/key/{anns.row.key_id}", 200),
            (ann, f"{KEYS}/key/{bobs.row.key_id}", 404),
            (ann, f"{KEYS}/new", 403),
            (ann, f"{KEYS}/users", 403),
            (eve, f"{KEYS}/key/{anns.row.key_id}", 404),
            (eve, f"{KEYS}/users/ann", 404),
            (eve, f"{KEYS}/users/bob", 200),
            (eve, f"{KEYS}/organizations/home", 404),
            (eve, f"{KEYS}/limits/new?scope=user:ann", 404),
            (owner, f"{KEYS}/users/nobody", 404),
            (owner, f"{KEYS}/key/nothing", 404),
            (owner, f"{KEYS}/key/a%00b", 400),
            (owner, f"{KEYS}/limits/new?scope=nothing", 400),
            (owner, f"{KEYS}/limits/new", 400),
            (owner, f"{KEYS}?text=%00", 400),
        ):
            assert (await visit.get(path)).status_code == status, path
        for visit, path, status in (
            (ann, f"{KEYS}/key/{anns.row.key_id}/revoke", 403),
            (eve, f"{KEYS}/key/{anns.row.key_id}/revoke", 404),
            (eve, f"{KEYS}/users/ann/remove", 404),
            (eve, f"{KEYS}/users/bob/password", 403),
            (eve, f"{KEYS}/organizations", 403),
        ):
            assert (await visit.post(path)).status_code == status, path
        assert keys.find(anns.token)
        # No more than her own key allows.
        more = await eve.post(f"{KEYS}/new", name="more", user="bob", lanes=["cluster", "cloud"])
        assert "Your own key allows cluster alone." in more.text
        limit = await eve.post(
            f"{KEYS}/limits/new?scope=organization:lab", scope="organization:lab", kind="spend month", amount="9"
        )
        assert "set by instance admins" in limit.text


async def test_members_revoke_keys_of_their_own(home: Served, owner: Visit) -> None:
    keys, log = home.services.keys, home.services.directory.audit
    leaked = keys.issue("leaked", ("cluster",), user_id="ann")
    other = keys.issue("other", ("cluster",), user_id="ann")
    async with visiting(home, "ann", token=leaked.token) as ann:
        # A finder of the key cannot end other applications with it.
        assert "/revoke" not in (await ann.get(f"{KEYS}/key/{other.row.key_id}")).text
        assert (await ann.post(f"{KEYS}/key/{other.row.key_id}/revoke")).status_code == 403
        own = f"{KEYS}/key/{leaked.row.key_id}"
        assert "this signs you out" in (await ann.get(own)).text
        assert (await ann.post(f"{own}/revoke")).status_code == 303
        assert (await ann.get(KEYS)).headers["location"].startswith("/console/login")
    assert (keys.find(leaked.token), keys.find(other.token) is None) == (None, False)
    written = log.entries(Filter(target=f"key:{leaked.row.key_id}"))
    assert (written[0].action, written[0].actor) == ("key.revoke", "user:ann")
    # Without a key the user may see any of their own requests, and no other user's.
    async with home.client({"accept": "text/html"}) as client:
        client.cookies.set(COOKIE, home.services.directory.sessions.open("ann", MACHINE))
        visit = Visit(client, "ann")
        bobs = keys.issue("bobs", ("cluster",), user_id="bob")
        assert (await visit.post(f"{KEYS}/key/{bobs.row.key_id}/revoke")).status_code == 404
        assert (await visit.post(f"{KEYS}/key/{other.row.key_id}/revoke")).status_code == 303
        assert (keys.find(other.token), keys.find(bobs.token) is None) == (None, False)
        assert (await visit.post(f"{KEYS}/key/{other.row.key_id}/revoke")).status_code == 404, "it has ended"


async def test_a_key_that_may_not_administer_shows_and_changes_nothing(home: Served) -> None:
    async with home.client({"accept": "text/html"}) as client:
        token = home.services.keys.issue("weak", ("cluster",), user_id="owner").token
        await client.post("/console/login", data={"key": token})
        visit = Visit(client, "owner")
        assert "no admin access" in (await visit.get(KEYS)).text
        assert (await visit.post(f"{KEYS}/users", user="x")).status_code == 403


async def test_users_come_get_a_link_another_role_and_go(home: Served, owner: Visit) -> None:
    users = home.services.directory.users
    bad = await owner.post(f"{KEYS}/users", user="not an id", email="x")
    assert re.search(r'id="f-user"[^>]*aria-invalid="true"', bad.text)
    assert 'value="not an id"' in bad.text
    assert (await owner.post(f"{KEYS}/users", user="cat", organization="lab")).status_code == 303
    assert users.user("cat").organization_id == "lab"
    linked = await owner.post(f"{KEYS}/users/cat/password")
    link = re.search(r"http://gateway\.test/console/welcome\?token=([\w-]+)", linked.text)
    assert link
    assert home.services.directory.passwords.link(link[1]).user.user_id == "cat"
    assert (await owner.post(f"{KEYS}/users/cat/role", role="seller")).status_code == 303
    assert users.user("cat").role == "seller"
    assert (await owner.post(f"{KEYS}/users/cat/remove")).status_code == 303
    assert (await owner.get(f"{KEYS}/users/cat")).status_code == 404
    last = await owner.post(f"{KEYS}/users/owner/role", role="member")
    assert "last instance admin" in last.text
    assert "Ann &lt;b&gt;" in (await owner.get(f"{KEYS}/users")).text


async def test_limits_are_set_and_taken_away(home: Served, owner: Visit) -> None:
    directory, scope = home.services.directory, "organization:lab"
    bad = await owner.post(f"{KEYS}/limits/new?scope={scope}", scope=scope, kind="requests minute", amount="many")
    assert re.search(r'id="f-amount"[^>]*aria-invalid="true"', bad.text)
    done = await owner.post(f"{KEYS}/limits/new?scope={scope}", scope=scope, kind="requests minute", amount="60")
    assert done.headers["location"] == f"{KEYS}/organizations/lab"
    assert directory.quotas.of([scope]) == [Quota(scope, "requests", 60, "minute")]
    assert "requests per minute" in (await owner.get(f"{KEYS}/organizations/lab")).text
    gone = {"scope": scope, "measure": "requests", "span": "minute"}
    assert (await owner.post(f"{KEYS}/limits/remove", **gone)).status_code == 303
    assert not directory.quotas.of([scope])
    assert (await owner.post(f"{KEYS}/limits/remove", **gone)).status_code == 400


async def test_keys_are_found_by_what_the_address_says(home: Served, owner: Visit) -> None:
    keys = home.services.keys
    keys.issue("needle", ("pool",), user_id="ann")
    old = keys.issue("old one", ("pool",), user_id="ann")
    keys.revoke(old.row.key_id)
    assert "needle" in (await owner.get(KEYS, text="NEEDLE")).text
    assert "needle" not in (await owner.get(KEYS, organization="lab", lane="")).text
    assert "needle" not in (await owner.get(KEYS, privacy="private")).text
    shown = (await owner.get(KEYS, which="ended", lane="pool")).text
    assert ("old one" in shown, "needle" in shown) == (True, False)
    assert "No matching keys" in (await owner.get(KEYS, text="haystack")).text


async def test_keys_of_who_was_removed_are_shown_as_what_they_are(home: Served, owner: Visit) -> None:
    users, keys = home.services.directory.users, home.services.keys
    users.add("dan")
    key = keys.issue("dans", ("pool",), user_id="dan").row.key_id
    users.remove("dan")
    assert "dans" not in (await owner.get(KEYS)).text
    assert "user removed" in (await owner.get(KEYS, which="ended")).text
    assert "user removed" in (await owner.get(f"{KEYS}/key/{key}")).text
    assert "dan" not in (await owner.get(f"{KEYS}/users", text="DAN")).text.partition("<tbody>")[2]


@pytest.mark.browser
def test_a_key_is_shown_once_however_often_the_page_is_loaded(page: Page, gateway: Gateway) -> None:
    sign_in(page, gateway, f"{KEYS}/new", key=admin_key(gateway))
    page.get_by_label("Name", exact=True).fill("from a browser")
    page.get_by_label("Monthly budget (USD)").fill("a lot")
    assert_accessible(page)
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_text("decimal string in USD with at most 9 digits")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("from a browser")
    page.get_by_label("Monthly budget (USD)").fill("2.50")
    before = len(gateway.admin("/admin/keys")["keys"])
    page.get_by_role("button", name="Create key").click()
    expect(page.get_by_text("You won't see it again")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("tab", name="Python").click()
    expect(page.get_by_text("from openai import OpenAI")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    assert len(gateway.admin("/admin/keys")["keys"]) == before + 1
    page.goto(gateway.root + KEYS)
    row = page.get_by_role("row").filter(has_text="from a browser").first
    expect(row).to_contain_text("of $2.50")
    page.wait_for_selector("body[data-live=on]")
    assert_accessible(page)
    row.get_by_role("link", name="from a browser").click()
    page.get_by_role("button", name="Rotate").click()
    page.get_by_role("button", name="Rotate key").click()
    expect(page.get_by_text("The previous key works until")).to_be_visible()
    page.get_by_role("link", name="Open key").click()
    page.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_text("Key revoked.")).to_be_visible()


@pytest.mark.browser
def test_a_user_is_added_and_sent_a_link(desktop: Page, gateway: Gateway) -> None:
    sign_in(desktop, gateway, f"{KEYS}/users", key=admin_key(gateway))
    desktop.get_by_role("button", name="Add user").click()
    desktop.get_by_label("User name").fill("no name")
    assert_accessible(desktop)
    desktop.get_by_role("dialog").get_by_role("button", name="Add user").click()
    expect(desktop.get_by_text("1 to 80 letters, digits")).to_be_visible()
    desktop.get_by_label("User name").fill("zoe")
    desktop.get_by_role("dialog").get_by_role("button", name="Add user").click()
    expect(desktop.get_by_role("heading", name="zoe", level=1)).to_be_visible()
    desktop.get_by_role("button", name="Create password link").click()
    desktop.get_by_role("button", name="Create link").click()
    expect(desktop.get_by_text("/console/welcome?token=")).to_be_visible()
    assert_accessible(desktop)


@pytest.mark.browser
def test_the_first_password_is_chosen_by_the_link_that_the_machine_printed(
    desktop: Page, gateway: Gateway
) -> None:
    link = gateway.cli("users", "password", "owner").strip()
    desktop.goto(link)
    assert_accessible(desktop)
    desktop.get_by_label("New password").fill("a password of mine")
    desktop.get_by_label("Confirm password").fill("a password of mine")
    desktop.get_by_role("button", name="Set password").click()
    desktop.get_by_role("link", name="owner").click()
    expect(desktop.get_by_text("this browser")).to_be_visible()
    assert_accessible(desktop)
    desktop.get_by_role("button", name="Sign out").click()
    desktop.get_by_label("User name").fill("owner")
    desktop.get_by_label("Password").fill("not my password")
    desktop.get_by_label("Password").press("Enter")
    expect(desktop.get_by_role("alert")).to_contain_text("wrong")
    assert_accessible(desktop)
    desktop.get_by_label("Password").fill("a password of mine")
    desktop.get_by_label("Password").press("Enter")
    expect(desktop.get_by_role("heading", name="Overview", level=1)).to_be_visible()
