"""/admin: who may do what to whom, what is refused and how it is said, and that all of it is written down."""

import time
from typing import Any

import httpx
import pytest

from gateway.identity.audit import Filter
from tests.gateway.api.conftest import Serve, Served

pytestmark = pytest.mark.anyio

PATHS = (
    ("GET", "/admin/organizations"),
    ("POST", "/admin/organizations"),
    ("GET", "/admin/users"),
    ("DELETE", "/admin/users/owner"),
    ("GET", "/admin/keys"),
    ("POST", "/admin/keys"),
    ("GET", "/admin/quotas"),
    ("GET", "/admin/audit"),
    ("GET", "/admin/machines"),
    ("POST", "/admin/tokens"),
    ("POST", "/admin/links/measure"),
    ("GET", "/admin/cluster/events"),
    ("GET", "/admin/cluster/models"),
    ("POST", "/admin/cluster/models"),
    ("POST", "/admin/cluster/models/stop"),
    ("POST", "/admin/advise"),
)


async def made(client: httpx.AsyncClient, method: str, path: str, **body: Any) -> Any:
    answer = await client.request(method, path, json=body or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_key_can_end_itself_and_no_other(serve: Serve) -> None:
    async with serve() as served:
        keys = served.services.keys
        leaked, other, others = (keys.issue("k", ("cluster",), user_id=user) for user in ("ann", "ann", "bob"))
        async with served.bearer(leaked.token) as finder:
            assert (await finder.delete(f"/admin/me/keys/{other.row.key_id}")).status_code == 403
            assert (await finder.delete(f"/admin/me/keys/{others.row.key_id}")).status_code == 404
            own = f"/admin/me/keys/{leaked.row.prefix}"
            assert await made(finder, "DELETE", own) == {"revoked": leaked.row.key_id}
            assert (await finder.delete(own)).status_code == 401
        assert [keys.find(each.token) is not None for each in (leaked, other, others)] == [False, True, True]
        written = served.services.directory.audit.entries(Filter(target=f"key:{leaked.row.key_id}"))
        assert (written[0].action, written[0].actor) == ("key.revoke", "user:ann")


async def test_an_organization_is_set_up_and_each_step_is_in_the_log_once(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        await made(machine, "POST", "/admin/organizations", id="lab", name="Vision lab")
        await made(machine, "POST", "/admin/users", user="bob", organization="lab", role="admin")
        key = await made(machine, "POST", "/admin/keys", name="k", user="bob", models=["a"], may_administer=True)
        quota = {"scope": "organization:lab", "measure": "spend", "span": "month", "amount": "5.00"}
        assert await made(machine, "PUT", "/admin/quotas", **quota) == quota | {"model": None}
        async with served.bearer(key["api_key"]) as bob:
            me = await made(bob, "GET", "/admin/me")
            assert (me["user"]["role"], me["quotas"]) == ("admin", [quota | {"model": None}])
            await made(bob, "POST", "/admin/users", user="cyd")
            assert {user["user_id"] for user in (await made(bob, "GET", "/admin/users"))["users"]} == {
                "bob",
                "cyd",
            }
            rotated = await made(bob, "POST", f"/admin/keys/{key['prefix']}/rotate", grace_s=0)
            assert (await bob.get("/admin/me")).status_code == 401
        async with served.bearer(rotated["api_key"]) as bob:
            assert (await made(bob, "GET", "/admin/me/keys"))["keys"][0]["key_id"] == key["key_id"]
            assert await made(bob, "GET", "/admin/me/usage") == []
            changed = await made(bob, "PATCH", f"/admin/keys/{key['key_id']}", priority=10)
            assert (changed["priority"], changed["models"]) == (10, ["a"])
            await made(bob, "DELETE", "/admin/users/cyd")
            log = await made(bob, "GET", "/admin/audit?limit=3")
            assert [entry["action"] for entry in log["entries"]] == ["user.remove", "key.change", "key.rotate"]
            rest = await made(bob, "GET", f"/admin/audit?before={log['next']}")
        steps = ["user.add", "quota.set", "key.create", "user.add", "organization.add"]
        assert [entry["action"] for entry in rest["entries"]] == steps
        assert {entry["actor"] for entry in log["entries"]} == {"user:bob"}
        assert {entry["address"] for entry in log["entries"]} == {"10.0.0.1"}
        query = "/admin/audit?actor=machine&since=2020-01-01T00:00:00Z&until=9999-01-01T00:00:00Z"
        assert len((await made(machine, "GET", query))["entries"]) == 4
        await made(machine, "POST", "/admin/tokens")
        assert (await made(machine, "GET", "/admin/audit?limit=1"))["entries"][0]["action"] == "token.create"


async def test_members_sellers_and_keys_that_may_not_are_refused(serve: Serve) -> None:
    async with serve() as served:
        users = served.services.directory.users
        for role in ("member", "seller"):
            users.add(role, role=role)
        plain = served.services.keys.create("plain", ("cluster",))
        before = len(served.services.directory.audit.entries(Filter()))
        for token in (served.key_of("member"), served.key_of("seller"), plain):
            async with served.bearer(token) as client:
                statuses = {(await client.request(method, path, json={})).status_code for method, path in PATHS}
                assert statuses == {403}
                assert (await client.get("/admin/me")).status_code == 200
        async with served.client() as nobody:
            answers = [await nobody.request(method, path) for method, path in PATHS]
        assert {answer.status_code for answer in answers} == {401}
        # The two keys made here, and nothing by those who were refused.
        assert len(served.services.directory.audit.entries(Filter())) == before + 2


async def test_an_admin_of_one_organization_reaches_no_other(serve: Serve) -> None:
    async with serve() as served:
        users = served.services.directory.users
        users.add_organization("lab")
        users.add("bob", organization="lab", role="admin")
        users.add("cyd", organization="lab")
        token = served.key_of("bob", models=("a",))
        async with served.bearer(token) as bob:
            assert [one["organization_id"] for one in await made(bob, "GET", "/admin/organizations")] == ["lab"]
            for method, path, body, status in (
                ("GET", "/admin/users?organization=home", None, 404),
                ("POST", "/admin/users", {"user": "x", "organization": "home", "role": "admin"}, 404),
                ("PATCH", "/admin/users/owner", {"role": "member"}, 404),
                ("DELETE", "/admin/users/owner", None, 404),
                ("POST", "/admin/keys", {"name": "k", "user": "owner"}, 404),
                ("PUT", "/admin/quotas", _quota("user:owner"), 404),
                ("PUT", "/admin/quotas", _quota("organization:lab"), 403),
                ("GET", "/admin/audit?organization=home", None, 404),
                ("POST", "/admin/organizations", {"id": "own"}, 403),
                ("GET", "/admin/machines", None, 403),
                ("POST", "/admin/keys", {"name": "k", "user": "cyd"}, 403),
                ("POST", "/admin/keys", {"name": "k", "user": "cyd", "lanes": ["cloud"], "models": ["a"]}, 403),
                ("PUT", "/admin/quotas", _quota("user:cyd"), 200),
                ("POST", "/admin/keys", {"name": "k", "user": "cyd", "lanes": ["cluster"], "models": ["a"]}, 200),
            ):
                answer = await bob.request(method, path, json=body)
                assert answer.status_code == status, (method, path, body, answer.text)
        assert users.user("owner").role == "admin"


async def test_an_admin_of_one_organization_hands_on_no_more_than_they_have(serve: Serve) -> None:
    async with serve() as served:
        users = served.services.directory.users
        users.add_organization("lab")
        users.add("bob", organization="lab", role="admin")
        users.add("cyd", organization="lab")
        in_an_hour_ns = time.time_ns() + 3600 * 10**9
        own = {"privacy": "internal", "priority": 5, "expires_ns": in_an_hour_ns}
        wide = served.services.keys.issue("wide", ("pool", "cloud"), user_id="cyd", department="lab").row.key_id
        async with served.bearer(served.key_of("bob", **own)) as bob:
            refused = await bob.post(f"/admin/keys/{wide}/rotate", json={})
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "lanes")
            key = {"name": "k", "user": "cyd", "lanes": ["cluster"]}
            fits: dict[str, Any] = {"privacy": "private", "priority": 5, "expires_in_s": 3000}
            made_key = await made(bob, "POST", "/admin/keys", **key, **fits)
            assert made_key["department"] == "lab"
            for field, value in (
                ("privacy", "public"),
                ("priority", 4),
                ("expires_in_s", 4000),
                ("expires_in_s", None),
                ("department", "home"),
            ):
                answers = [await bob.post("/admin/keys", json=key | fits | {field: value})]
                if field != "department":
                    answers.append(await bob.patch(f"/admin/keys/{made_key['key_id']}", json={field: value}))
                for answer in answers:
                    assert (answer.status_code, answer.json()["error"]["param"]) == (403, field), answer.text
            await made(bob, "POST", f"/admin/keys/{made_key['key_id']}/rotate", grace_s=0)


async def test_an_admin_of_one_organization_takes_over_neither_sign_ins_nor_credits(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        users = served.services.directory.users
        users.add_organization("lab")
        users.add("bob", organization="lab", role="admin")
        await served.services.ledger.credit("c1", "old-customer", 10**9, "before there were users")
        async with served.bearer(served.key_of("bob")) as bob:
            for body, status, param in (
                ({"user": "eve", "email": "ann@example.org"}, 403, "email"),
                ({"user": "old-customer"}, 409, "user"),
            ):
                answer = await bob.post("/admin/users", json=body)
                assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
            await made(bob, "POST", "/admin/users", user="cyd")
            await served.services.ledger.credit("c2", "cyd", 10**9, "")
            await made(bob, "DELETE", "/admin/users/cyd")
            await made(bob, "POST", "/admin/users", user="cyd")
        await made(machine, "POST", "/admin/users", user="old-customer", organization="lab", email="a@x.org")
        answer = await machine.post("/admin/users", json={"user": "eve", "email": "A@x.org"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (409, "email")
    async with serve(oidc_organization="lab") as served, served.bearer(served.key_of("bob")) as bob:
        await made(bob, "POST", "/admin/users", user="eve", email="ann@example.org")


def _quota(scope: str) -> dict[str, str]:
    return {"scope": scope, "measure": "requests", "span": "minute", "amount": "60"}


WRONG: tuple[tuple[str, str, Any, str], ...] = (
    ("POST", "/admin/users", {"user": "a", "rank": 1}, "rank"),
    ("POST", "/admin/users", {"user": "a b"}, "user"),
    ("POST", "/admin/users", {"user": "a", "role": "king"}, "role"),
    ("POST", "/admin/users", {"user": "a", "email": "x"}, "email"),
    ("POST", "/admin/users", {"user": "a", "name": "\x07"}, "name"),
    ("POST", "/admin/users", {"user": "a\x00"}, "user"),
    ("POST", "/admin/users", {}, "user"),
    ("POST", "/admin/organizations", {"id": "x" * 81}, "id"),
    ("POST", "/admin/keys", {"name": "k", "user": "owner", "lanes": []}, "lanes"),
    ("POST", "/admin/keys", {"name": "k", "user": "owner", "lanes": ["moon"]}, "lanes.0"),
    ("POST", "/admin/keys", {"name": "k", "user": "owner", "department": "a:b"}, "department"),
    ("POST", "/admin/keys", {"name": "k", "user": "owner", "expires_in_s": 0}, "expires_in_s"),
    ("POST", "/admin/keys", {"name": "k", "user": "owner", "regions": ["e u"]}, "regions.0"),
    ("PUT", "/admin/quotas", _quota("owner"), "scope"),
    ("PUT", "/admin/quotas", _quota("user:owner") | {"amount": "1.5"}, "amount"),
    ("PUT", "/admin/quotas", _quota("user:owner") | {"amount": 5}, "amount"),
    ("PUT", "/admin/quotas", _quota("user:owner") | {"span": "week"}, "span"),
    ("GET", "/admin/audit?limit=0", None, "limit"),
    ("GET", "/admin/audit?before=9223372036854775808", None, "before"),
    ("GET", "/admin/audit?since=yesterday", None, "since"),
    ("GET", "/admin/audit?actor=%00", None, "actor"),
    ("DELETE", "/admin/users/%00", None, "user"),
)
"""A request, and the field that is wrong in it."""


async def test_bad_input_is_refused_with_its_field(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        for method, path, body, param in WRONG:
            answer = await machine.request(method, path, json=body)
            found = (answer.status_code, answer.json()["error"]["param"])
            assert found == (400, param), (method, path, body, answer.text)


async def test_who_and_what_is_not_there_is_404_and_what_must_stay_409(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        for method, path, body, status in (
            ("PATCH", "/admin/users/nobody", {"role": "admin"}, 404),
            ("DELETE", "/admin/users/nobody/sessions", None, 404),
            ("POST", "/admin/users", {"user": "a", "organization": "none"}, 404),
            ("DELETE", "/admin/keys/none", None, 404),
            ("POST", "/admin/keys/none/rotate", {}, 404),
            ("POST", "/admin/machines/none/remove", None, 404),
            ("POST", "/admin/machines/none/drain", None, 404),
            ("POST", "/admin/pool/backends/none/remove", None, 404),
            ("POST", "/admin/pool/backends/none/drain", None, 404),
            ("DELETE", "/admin/quotas?scope=user:owner&measure=requests&span=day", None, 404),
            ("DELETE", "/admin/users/owner", None, 409),
            ("PATCH", "/admin/users/owner", {"role": "seller"}, 409),
            ("POST", "/admin/users", {"user": "owner"}, 409),
            ("POST", "/admin/organizations", {"id": "home"}, 409),
        ):
            answer = await machine.request(method, path, json=body)
            assert answer.status_code == status, (method, path, answer.text)
        assert served.services.directory.audit.entries(Filter()) == []


async def test_guessing_keys_is_slowed_down(serve: Serve) -> None:
    async with serve(wrong_keys_per_minute=2) as served:
        statuses = [await _tried(served, f"mr-{number}", "10.0.0.1") for number in range(3)]
        assert statuses == [(401, None), (401, None), (429, "30")]
        assert await _tried(served, served.key_of("owner"), "10.0.0.2") == (200, None)


async def _tried(served: Served, token: str, address: str) -> tuple[int, str | None]:
    async with served.bearer(token, address) as client:
        answer = await client.get("/admin/me")
    return answer.status_code, answer.headers.get("retry-after")
