"""The console's sign-in: by key, through an identity provider, and what is refused on the way."""

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from gateway.identity import oidc, provider_answers
from gateway.identity.audit import Filter
from tests.fakes.oidc_provider import CLIENT_ID, CLIENT_SECRET, OidcProvider, oidc_provider
from tests.gateway.api.conftest import ROOT, Serve, Served

pytestmark = pytest.mark.anyio


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with oidc_provider() as provider:
        yield provider


def settings(provider: OidcProvider, **more: Any) -> dict[str, Any]:
    client = {"oidc_client_id": CLIENT_ID, "oidc_client_secret": CLIENT_SECRET}
    return {"oidc_issuer": provider.issuer} | client | more


async def go_and_come_back(
    browser: httpx.AsyncClient, change: dict[str, str] | None = None, way_back: str = ""
) -> httpx.Response:
    """From our page to the provider and back again, as a browser follows it."""
    start = await browser.get("/console/oidc/start", params={"next": way_back})
    assert start.status_code == 303, start.text
    async with httpx.AsyncClient(trust_env=False) as elsewhere:
        agreed = await elsewhere.get(start.headers["location"])
    back = urlsplit(agreed.headers["location"])
    assert f"{back.scheme}://{back.netloc}{back.path}" == f"{ROOT}/console/oidc/callback"
    query = {name: values[0] for name, values in parse_qs(back.query).items()} | (change or {})
    return await browser.get(back.path, params=query)


async def test_a_user_whom_an_admin_added_signs_in_by_their_verified_address(
    serve: Serve, provider: OidcProvider
) -> None:
    async with serve(**settings(provider)) as served, served.client() as browser:
        users = served.services.directory.users
        users.add("ann", email="Ann@example.org")
        answer = await go_and_come_back(browser)
        assert (answer.status_code, answer.headers["location"]) == (303, "/console")
        cookie = next(line for line in answer.headers.get_list("set-cookie") if "millrace_session" in line)
        assert {"HttpOnly", "SameSite=lax", "Path=/console"} <= set(cookie.split("; "))
        assert "User name" in (await browser.get("/console/keys/account")).text
        assert (await browser.get("/console/keys/users")).status_code == 403
        # Known by subject from now on, whatever the address is.
        provider.user = {"sub": "s1", "email": "ann@elsewhere.org"}
        again = await go_and_come_back(browser, way_back="/console/keys?which=all")
        assert (again.status_code, again.headers["location"]) == (303, "/console/keys?which=all")
        provider.user = {"sub": "s2", "email": "ann@example.org"}
        assert (await go_and_come_back(browser)).status_code == 403
        actions = [entry.action for entry in served.services.directory.audit.entries(Filter(target="user:ann"))]
        assert actions == ["session.open", "session.open", "user.link", "user.add"]
        users.remove("ann")
        assert (await browser.get("/console/keys/account")).status_code == 303


async def test_sign_out_ends_the_session_and_only_our_form_can(serve: Serve) -> None:
    async with serve() as served, served.client() as browser:
        key = served.key_of("owner")
        elsewhere = {"sec-fetch-site": "cross-site"}
        refused = await browser.post("/console/login", data={"key": key}, headers=elsewhere)
        assert refused.status_code == 403
        refused = await browser.post("/console/login", data={"key": key}, headers={"origin": "https://evil.test"})
        assert refused.status_code == 403
        assert (await browser.post("/console/login", data={"key": "mr-wrong"})).status_code == 401
        assert (await browser.post("/console/login", data={"key": key})).status_code == 303
        copied = dict(browser.cookies)
        shown = await browser.get("/console/keys/users")
        assert shown.status_code == 200
        assert (await browser.post("/console/logout")).status_code == 403
        csrf = re.search('name="csrf" value="([0-9a-f]+)"', shown.text)
        assert csrf
        assert (await browser.post("/console/logout", data={"csrf": csrf[1]})).status_code == 303
        browser.cookies.update(copied)
        assert (await browser.get("/console/keys/users")).status_code == 303
        assert (await browser.post("/console/login", content=b"x" * 5000)).status_code == 413


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "another"}, "aud"),
        ({"iss": "https://evil.test"}, "iss"),
        ({"exp": int(time.time()) - 3600}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": int(time.time()) + 3600}, "token"),
        ({"azp": "another"}, "azp"),
        ({"email_verified": False}, "No user has"),
        ({"email_verified": None}, "No user has"),
    ],
)
async def test_a_token_that_is_not_for_this_sign_in_is_refused(
    serve: Serve, provider: OidcProvider, claims: dict[str, Any], why: str
) -> None:
    async with serve(**settings(provider)) as served, served.client() as browser:
        served.services.directory.users.add("ann", email="ann@example.org")
        provider.claims = claims
        answer = await go_and_come_back(browser)
        assert answer.status_code == 403
        assert why in answer.text
        assert "millrace_session" not in answer.headers.get("set-cookie", "")


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_a_token_that_anybody_could_make_is_refused(
    serve: Serve, provider: OidcProvider, algorithm: str
) -> None:
    async with serve(**settings(provider)) as served, served.client() as browser:
        served.services.directory.users.add("ann", email="ann@example.org")
        provider.algorithm = algorithm
        assert (await go_and_come_back(browser)).status_code == 403
        provider.algorithm = "RS256"
        assert (await go_and_come_back(browser)).status_code == 303


async def test_what_comes_back_must_be_what_was_sent(serve: Serve, provider: OidcProvider) -> None:
    async with serve(**settings(provider)) as served, served.client() as browser:
        served.services.directory.users.add("ann", email="ann@example.org")
        for change in (
            {"state": "x"},
            {"state": "\u00e9"},
            {"iss": "https://evil.test"},
            {"code": "x"},
            {"code": ""},
        ):
            assert (await go_and_come_back(browser, change)).status_code == 403
        assert (await go_and_come_back(browser, {"error": "access_denied"})).status_code == 403
        browser.cookies.clear()
        assert (await browser.get("/console/oidc/callback?code=x&state=y")).status_code == 403
        back = await go_and_come_back(browser)
        assert back.status_code == 303
        # What worked once does not work again: the attempt is over, for any holder of its address.
        assert (await browser.get(str(back.request.url))).status_code == 403


async def test_keys_rotate_and_strangers_keys_are_refused(
    serve: Serve, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "REFETCH_S", 0.0)
    async with serve(**settings(provider)) as served, served.client() as browser:
        served.services.directory.users.add("ann", email="ann@example.org")
        assert (await go_and_come_back(browser)).status_code == 303
        provider.rotate()
        assert (await go_and_come_back(browser)).status_code == 303
        assert provider.asked.count("/.well-known/openid-configuration") == 1
        assert provider.asked.count("/keys") == 2
        provider.sign_with_a_stranger()
        assert (await go_and_come_back(browser)).status_code == 403


async def test_new_users_and_roles_come_from_the_provider_where_that_is_set(
    serve: Serve, provider: OidcProvider
) -> None:
    rules = {
        "oidc_auto_create": True,
        "oidc_allowed_domains": ("example.org",),
        "oidc_roles": {"ops": "admin", "sales": "seller"},
    }
    async with serve(**settings(provider, **rules)) as served, served.client() as browser:
        users = served.services.directory.users
        provider.user = {"sub": "s1", "email": "eve+x@example.org", "groups": ["sales", "ops"], "name": "Eve"}
        assert (await go_and_come_back(browser)).status_code == 303
        eve = next(user for user in users.users() if user.name == "Eve")
        assert (eve.user_id, eve.role) == ("eve-x@example.org", "admin")
        assert "Machines" in (await browser.get("/console")).text
        provider.user["groups"] = "sales"
        assert (await go_and_come_back(browser)).status_code == 303
        assert users.user(eve.user_id).role == "seller"
        # Another one with the same readable id is another user.
        provider.user = {"sub": "s2", "email": "eve-x@example.org"}
        assert (await go_and_come_back(browser)).status_code == 303
        assert len(users.users()) == 3
        provider.user = {"sub": "s3", "email": "eve@example.com"}
        assert (await go_and_come_back(browser)).status_code == 403


async def test_a_provider_that_is_down_or_strange_is_a_page(
    serve: Serve, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_answers, "ANSWER_TIMEOUT_S", 0.3)

    async def started(served: Served) -> tuple[int, str]:
        async with served.client() as browser:
            answer = await browser.get("/console/oidc/start")
        return answer.status_code, answer.text

    async with serve(**settings(provider)) as served:
        provider.silence_s = 1.0
        status, page = await started(served)
        assert status == 503
        assert "does not answer" in page
        provider.silence_s = 0.0
        provider.metadata = {"issuer": "https://evil.test"}
        assert (await started(served))[0] == 503
        provider.metadata = {"token_endpoint": "file:///etc/passwd"}
        assert (await started(served))[0] == 503
        provider.metadata = {}
        assert (await started(served))[0] == 303
        async with served.client() as browser:
            assert "Sign in through your organization" in (await browser.get("/console/login")).text
    async with serve() as served, served.client() as browser:
        assert (await browser.get("/console/oidc/start")).status_code == 404
