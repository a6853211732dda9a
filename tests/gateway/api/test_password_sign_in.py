"""Sign-in with a password: the first link, what is refused on the way, and what a changed password ends."""

import re
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from cluster.trust.addresses import Target
from gateway.cli.main import app
from gateway.cli.serving import _first_password
from gateway.identity import password_hash
from gateway.identity.audit import Filter
from gateway.serving import Running
from tests.gateway.api.conftest import Serve, Served

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse battery"
HTML = {"accept": "text/html"}


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a guess costs is not what is looked at here."""
    monkeypatch.setattr(password_hash, "_MEMORY_KIB", 64)


async def chosen(served: Served, browser: httpx.AsyncClient, password: str = PASSWORD) -> httpx.Response:
    """The first link opened, and a password chosen there."""
    link = served.services.directory.passwords.new_first_link()
    assert "You will sign in as <b>owner</b>" in (await browser.get(f"/console/welcome?token={link}")).text
    return await browser.post("/console/welcome", data={"token": link, "password": password, "again": password})


def csrf_of(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


async def test_the_first_admin_chooses_a_password_and_signs_in_with_it(serve: Serve) -> None:
    async with serve() as served, served.client(HTML) as first, served.client(HTML) as later:
        assert "Password" not in (await later.get("/console/login")).text
        link = served.services.directory.passwords.new_first_link()
        for password, again, reason in (("short", "short", "at least 10"), (PASSWORD, "another", "do not match")):
            form = {"token": link, "password": password, "again": again}
            refused = await first.post("/console/welcome", data=form)
            assert refused.status_code == 400
            assert reason in refused.text
            assert PASSWORD not in refused.text
        entered = await chosen(served, first)
        assert (entered.status_code, entered.headers["location"]) == (303, "/console")
        assert (await first.get("/console/keys/account")).status_code == 200
        # Used up, and no other first link opens anything either.
        used = await later.post("/console/welcome", data={"token": link, "password": PASSWORD, "again": PASSWORD})
        assert used.status_code == 404
        assert "User name" in (await later.get("/console/login")).text
        place = "/console/keys?which=all"
        form = {"user": "owner", "password": PASSWORD, "next": place}
        back = await later.post("/console/login/password", data=form)
        assert (back.status_code, back.headers["location"]) == (303, place)
        assert (await later.get(place)).status_code == 200
        opened = served.services.directory.audit.entries(Filter(action="session.open", target="user:owner"))
        assert len(opened) == 2


async def test_wrong_ones_and_foreign_forms_are_refused_alike(serve: Serve) -> None:
    async with serve() as served, served.client(HTML) as browser:
        await chosen(served, browser)
        browser.cookies.clear()
        words = set()
        for user in ("owner", "nobody-at-all"):
            answer = await browser.post(
                "/console/login/password", data={"user": user, "password": "wrong one 123"}
            )
            assert answer.status_code == 401
            words.add(re.search(r'role="alert">.*?</svg> (.*?)</p>', answer.text)[1])  # type: ignore[index]
        assert len(words) == 1, "nobody learns who has a password"
        form = {"user": "owner", "password": PASSWORD}
        foreign = await browser.post(
            "/console/login/password", data=form, headers={"sec-fetch-site": "cross-site"}
        )
        assert foreign.status_code == 403
        elsewhere = await browser.post("/console/login/password", data=form | {"next": "https://evil.example"})
        assert elsewhere.headers["location"] == "/console"


async def test_a_changed_password_ends_the_other_sessions(serve: Serve) -> None:
    async with serve() as served, served.client(HTML) as here, served.client(HTML, "10.0.0.7") as there:
        await chosen(served, here)
        await there.post("/console/login/password", data={"user": "owner", "password": PASSWORD})
        account = await here.get("/console/keys/account")
        assert "10.0.0.7" in account.text
        form = {"csrf": csrf_of(account), "old": PASSWORD, "new": "another good one", "again": "another good one"}
        unproven = await here.post("/console/keys/account/password", data=form | {"csrf": "0" * 64})
        assert unproven.status_code == 403
        wrong = await here.post("/console/keys/account/password", data=form | {"old": "not the old one"})
        assert wrong.status_code == 403
        assert "Wrong password." in wrong.text
        assert (await there.get("/console/keys/account")).status_code == 200
        done = await here.post("/console/keys/account/password", data=form)
        assert done.status_code == 303, done.text
        assert (await here.get("/console/keys/account")).status_code == 200
        gone = await there.get("/console/keys/account")
        assert gone.headers["location"] == "/console/login?next=/console/keys/account"
        assert served.services.directory.audit.entries(Filter(action="password.change"))


async def test_sessions_are_listed_and_ended_one_by_one(serve: Serve) -> None:
    async with serve() as served, served.client(HTML) as here, served.client(HTML, "10.0.0.7") as there:
        sessions = served.services.directory.sessions
        token = served.key_of("owner")
        for browser in (here, there):
            await browser.post("/console/login", data={"key": token})
        account = await here.get("/console/keys/account")
        [other] = [one for one in sessions.of_user("owner") if one.address == "10.0.0.7"]
        form = {"csrf": csrf_of(account), "session": other.session_id}
        assert (await here.post("/console/keys/account/session", data=form)).status_code == 303
        assert (await there.get("/console/keys/account")).status_code == 303
        assert (await here.post("/console/keys/account/session", data=form)).status_code == 404
        await there.post("/console/login", data={"key": token})
        assert (await here.post("/console/keys/account/sessions", data={"csrf": form["csrf"]})).status_code == 303
        assert [one.address for one in sessions.of_user("owner")] == ["10.0.0.1"]


async def test_the_machine_prints_the_first_link_and_one_for_anybody(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--data-dir", str(tmp_path)])
        return done.stdout if done.exit_code == 0 else f"{done.exit_code} {done.stderr}"

    async with serve() as served, served.client(HTML) as browser:
        assert "no gateway is running" in printed("users", "password", "owner")
        monkeypatch.setenv("MILLRACE_IDENTITY__PUBLIC_URL", "https://mill.example")
        assert "User 'ann' not found" in printed("users", "password", "ann")
        root, services = "http://10.0.0.1:8000", served.services
        running = Running(
            f"{root}/v1",
            f"{root}/console",
            Target("h", 1),
            services.settings,
            services.directory,
            services.controller,
        )
        told = "set one within an hour for admin access to the console:"
        link = _first_password(running).removeprefix(f"{told} http://10.0.0.1:8000")
        assert (await browser.get(link)).status_code == 200
        served.services.directory.users.add("ann")
        other = printed("users", "password", "ann").strip().removeprefix("https://mill.example")
        assert "as <b>ann</b>" in (await browser.get(other)).text
        await chosen(served, browser)
        assert _first_password(running).startswith("set earlier")
        # Anybody's first password ends the link that was printed at the start; ann's own stays good.
        assert (await browser.get(link)).status_code == 404
        assert (await browser.get(other)).status_code == 200
