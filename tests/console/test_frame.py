"""The frame in process: who gets in and back, what forms say, what browsers may keep, what is not there."""

import gzip
import re
from collections.abc import Iterator

import pytest

from cluster.trust.addresses import Target
from gateway.app import create_app
from gateway.console.browser import own_path
from gateway.identity.users import Users
from tests.console.browsing import visiting
from tests.console.example_page import Ticking, example_page
from tests.gateway.api.conftest import Served

pytestmark = pytest.mark.anyio

MODELS = "/console/models"


@pytest.fixture(scope="module")
def ticking() -> Iterator[Ticking]:
    with example_page() as ticking:
        yield ticking


@pytest.fixture(scope="module")
def framed(served: Served, ticking: Ticking) -> Served:
    """The app with the example page; ann is a member, eve an admin of another organization."""
    users: Users = served.services.directory.users
    users.add("ann")
    users.add_organization("elsewhere", "Elsewhere")
    users.add("eve", organization="elsewhere", role="admin")
    return Served(served.services, create_app(served.services, Target("127.0.0.1", 1)))


async def test_a_visitor_without_a_session_returns_to_their_page(framed: Served) -> None:
    async with framed.client({"accept": "text/html"}) as stranger:
        sent = await stranger.get(f"{MODELS}?lane=cloud&page=2")
        assert (sent.status_code, sent.headers["location"]) == (
            303,
            "/console/login?next=/console/models%3Flane%3Dcloud%26page%3D2",
        )
        asked = await stranger.get(
            f"{MODELS}/live", headers={"hx-request": "true", "hx-current-url": f"http://gateway.test{MODELS}?a=b"}
        )
        assert (asked.status_code, asked.headers["hx-redirect"]) == (
            401,
            "/console/login?next=/console/models%3Fa%3Db",
        )
        shown = await stranger.get(sent.headers["location"])
        assert 'name="next" value="/console/models?lane=cloud&amp;page=2"' in shown.text
        fields = {"key": framed.key_of("ann"), "next": f"{MODELS}?lane=cloud&page=2"}
        done = await stranger.post("/console/login", data=fields)
        assert (done.status_code, done.headers["location"]) == (303, f"{MODELS}?lane=cloud&page=2")


async def test_a_session_dies_with_its_key(framed: Served) -> None:
    async with framed.client({"accept": "text/html"}) as browser:
        made = framed.services.keys.issue("short", ("cluster",), user_id="ann")
        await browser.post("/console/login", data={"key": made.token})
        assert (await browser.get(MODELS)).status_code == 200
        framed.services.keys.revoke(made.token[:10])
        assert (await browser.get(MODELS)).status_code == 303


@pytest.mark.parametrize(
    "text",
    [
        "https://evil.test/console",
        "//evil.test/console",
        "/\\evil.test",
        "/console\\@evil.test",
        "/consoles",
        "/console/../admin/keys",
        "/console/%2e%2e/admin/keys",
        "javascript:alert(1)",
        "/console/login?next=/console",
        "/console/logout",
        "/console/\r\nset-cookie: a=b",
        "",
    ],
)
def test_no_sign_in_leads_elsewhere(text: str) -> None:
    assert own_path(text) == "/console"


async def test_roles_decide_what_is_shown_and_what_may_be_done(framed: Served) -> None:
    async with visiting(framed, "ann") as ann, visiting(framed, "eve") as eve, visiting(framed) as owner:
        refused = await ann.post(MODELS, name="llama", slots="1", price="1.00")
        assert refused.status_code == 403
        assert "Only admins of your organization can do this; your role is member" in refused.text
        assert "<h1>Access denied</h1>" in refused.text
        assert "/console/policy" not in (await ann.get(MODELS)).text
        assert (await eve.get(f"{MODELS}/instance")).status_code == 403
        assert (await owner.get(f"{MODELS}/instance")).status_code == 200
        anybodys = framed.services.keys.issue("app", ("cluster",), user_id="owner")
    async with framed.client({"accept": "text/html"}) as weak:
        await weak.post("/console/login", data={"key": anybodys.token})
        page = await weak.get(MODELS)
        csrf = re.search('name="csrf" content="([0-9a-f]+)"', page.text)
        assert csrf
        done = await weak.post(MODELS, data={"csrf": csrf[1], "name": "llama", "slots": "1", "price": "1"})
        assert done.status_code == 403
        assert "no admin access" in done.text


async def test_what_is_wrong_is_said_beside_its_field_and_nothing_typed_is_lost(framed: Served) -> None:
    async with visiting(framed) as owner:
        given = {"name": "x<", "slots": "many", "price": "1,50", "lanes": ["cloud"], "is_pinned": "true"}
        answer = await owner.post(MODELS, **given)
        assert answer.status_code == 400
        for field in ("name", "slots", "price"):
            tag = re.search(f'<input [^>]*name="{field}"[^>]*>', answer.text)
            assert tag
            assert f'aria-describedby="f-{field}-error' in tag[0]
            assert 'aria-invalid="true"' in tag[0]
            assert f'id="f-{field}-error"' in answer.text
        assert 'value="x&lt;"' in answer.text
        assert 'value="many"' in answer.text
        assert "Enter a whole number." in answer.text
        assert re.search('value="cloud" checked', answer.text)
        assert not re.search('value="cluster" checked', answer.text)
        assert re.search("is_pinned[^>]* checked", answer.text)
        empty = await owner.post(MODELS, name="", slots="1", price="1.00")
        assert "Enter a value." in empty.text


async def test_a_form_is_done_once_it_is_right_and_said_so_on_the_next_page(framed: Served) -> None:
    async with visiting(framed) as owner:
        fields = {"name": "llama", "slots": "4", "price": "0.50", "lanes": ["cloud", "cluster"]}
        done = await owner.post(MODELS, **fields)
        assert (done.status_code, done.headers["location"]) == (303, f"{MODELS}/llama")
        there = await owner.get(f"{MODELS}/llama")
        assert "llama &lt;made&gt;" in there.text
        assert "price=500000000" in there.text
        assert "[&#39;cloud&#39;, &#39;cluster&#39;]" in there.text
        assert "&lt;made&gt;" not in (await owner.get(f"{MODELS}/llama")).text
        by_script = await owner.post(MODELS, htmx=True, **fields)
        assert (by_script.status_code, by_script.headers["hx-redirect"]) == (204, f"{MODELS}/llama")
        part = await owner.post(f"{MODELS}/part", htmx=True)
        assert "<p>Now: &lt;part&gt;</p>" in part.text
        assert "Saved &lt;it&gt;." in part.text


async def test_only_forms_of_ones_own_session_are_taken(framed: Served) -> None:
    async with visiting(framed) as owner, visiting(framed) as other:
        await other.get(MODELS)
        fields = {"name": "llama", "slots": "4", "price": "0.50"}
        assert (await owner.post(MODELS, csrf=other.csrf, **fields)).status_code == 403
        assert (await owner.client.post(MODELS, data=fields)).status_code == 403
        elsewhere = {"sec-fetch-site": "cross-site", "x-csrf": owner.csrf}
        assert (await owner.client.post(MODELS, data=fields, headers=elsewhere)).status_code == 403
        assert (await owner.post(MODELS, name="x" * 70_000)).status_code == 413
        assert (await owner.client.post(MODELS, json=fields, headers={"x-csrf": owner.csrf})).status_code == 400
        many = "&".join(f"a{n}=1" for n in range(600))
        kind = {"content-type": "application/x-www-form-urlencoded", "x-csrf": owner.csrf}
        assert (await owner.client.post(MODELS, content=many, headers=kind)).status_code == 400
        word = await owner.client.post(MODELS, data=fields, headers={"hx-request": "true"})
        assert (word.status_code, word.headers["hx-reswap"]) == (403, "none")
        assert '<hx-partial hx-target="#toaster"' in word.text


async def test_what_is_not_there_is_said_in_the_frame(framed: Served) -> None:
    async with visiting(framed) as owner, framed.client({"accept": "text/html"}) as stranger:
        for path in (f"{MODELS}/nope", "/console/nope", "/console/models/llama/more"):
            answer = await owner.get(path)
            assert answer.status_code == 404, path
            assert "<h1>Not found</h1>" in answer.text
            assert "Sign out" in answer.text
        alone = await stranger.get("/console/nope")
        assert alone.status_code == 404
        assert "Sign out" not in alone.text
        program = await owner.client.get("/console/nope", headers={"accept": "application/json"})
        assert program.json()["error"]["code"] == "not_found"


async def test_pages_run_no_script_but_ours_and_browsers_keep_files_by_their_content(framed: Served) -> None:
    async with visiting(framed) as owner:
        page = await owner.get(MODELS)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=|javascript:", page.text)
        files = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page.text)
        assert len(files) > 10
        for path in files:
            found = await owner.client.get(path)
            assert found.headers["cache-control"] == "public, max-age=31536000, immutable", path
            again = await owner.client.get(path, headers={"if-none-match": found.headers["etag"]})
            assert again.status_code == 304
        path = next(path for path in files if "console.css" in path)
        whole = await owner.client.get(path, headers={"accept-encoding": "identity"})
        assert re.search(r'url\("/console/static/vendor/inter/[a-z-]+\.woff2\?v=[0-9a-f]{12}"\)', whole.text)
        old = await owner.client.get(path.partition("?")[0] + "?v=000000000000")
        assert old.headers["cache-control"] == "no-cache"
        assert gzip.decompress(gzip.compress(whole.content)) == old.content
        for path in ("../console.py", "..%2fconsole.py", "vendor", "", "nope.css"):
            assert (await owner.client.get(f"/console/static/{path}")).status_code == 404
