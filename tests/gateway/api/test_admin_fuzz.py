"""/admin against whatever comes: on either database nothing is a fault of ours."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.gateway.api.conftest import Serve

KNOWN = (
    "home",
    "owner",
    "member",
    "requests",
    "spend",
    "day",
    "user:owner",
    "1",
    "0.5",
    "cluster",
    "public",
    "",
)
FIELDS = (
    "id",
    "name",
    "user",
    "organization",
    "email",
    "role",
    "department",
    "lanes",
    "models",
    "regions",
    "privacy",
)
MORE = (
    "priority",
    "expires_in_s",
    "grace_s",
    "scope",
    "measure",
    "span",
    "model",
    "amount",
    "may_administer",
    "x",
)
POSTS = (
    ("POST", "/admin/organizations"),
    ("POST", "/admin/users"),
    ("PATCH", "/admin/users/{}"),
    ("POST", "/admin/keys"),
    ("PATCH", "/admin/keys/{}"),
    ("POST", "/admin/keys/{}/rotate"),
    ("PUT", "/admin/quotas"),
)
GETS = (
    ("GET", "/admin/users?organization={}"),
    ("GET", "/admin/keys?user={}"),
    ("DELETE", "/admin/users/{}/sessions"),
    ("DELETE", "/admin/quotas?scope=user:{}&measure=requests&span=day"),
    ("GET", "/admin/audit?target={}"),
    ("GET", "/admin/audit?before={}"),
    ("GET", "/admin/audit?since={}"),
    ("GET", "/admin/me/usage?days={}"),
)

texts = st.sampled_from(KNOWN) | st.text(max_size=20)
# As they come over the wire, half a surrogate pair among them.
values = st.recursive(
    texts | st.just("\ud800") | st.integers() | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=5,
)
bodies = st.dictionaries(st.sampled_from(FIELDS + MORE), texts | values, max_size=6) | values


def test_nothing_that_is_sent_is_a_fault_of_ours(serve: Serve, dsn: str) -> None:
    with asyncio.Runner() as runner:
        serving = serve(dsn=dsn)
        served = runner.run(serving.__aenter__())
        machine = served.machine
        try:

            @settings(max_examples=examples(30, 150), suppress_health_check=list(HealthCheck))
            @given(st.sampled_from(POSTS + GETS), texts, bodies)
            def check(route: tuple[str, str], name: str, body: Any) -> None:
                answer = runner.run(_asked(machine, route, name, body))
                assert answer.status_code < 500, answer.text
                if answer.status_code >= 400:
                    assert answer.json()["error"]["message"]

            check()
        finally:
            runner.run(machine.aclose())
            runner.run(serving.__aexit__(None, None, None))


async def _asked(client: httpx.AsyncClient, route: tuple[str, str], name: str, body: Any) -> httpx.Response:
    method, path = route
    headers = {"content-type": "application/json"}
    content = json.dumps(body) if route in POSTS else None
    return await client.request(method, path.format(quote(name, safe="")), content=content, headers=headers)
