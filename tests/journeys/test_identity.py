"""Users, keys and limits through the command line and over HTTP, seen by a gateway that runs meanwhile."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateways import Gateway, running_gateway, until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("identity"), model=None) as running:
        yield running


@pytest.mark.slow
def test_a_lab_is_set_up_by_command_and_over_http(gateway: Gateway) -> None:
    def told(*words: str) -> Any:
        return json.loads(gateway.cli(*words, "--json"))

    start = told("audit")[0]["seq"]
    told("org", "add", "lab", "--name", "Vision lab")
    told("users", "add", "ann", "--organization", "lab", "--role", "admin")
    told("users", "add", "bob", "--organization", "lab")
    key = told("key", "create", "ann", "--user", "ann", "--admin", "--models", "a,b", "--expires", "1d")
    told("key", "limit", key["prefix"], "requests", "60", "--per", "minute")
    assert told("key", "limit", "organization:lab", "spend", "5.00", "--per", "month")[0]["amount"] == "5.00"

    ann = gateway.http(key["api_key"])
    me = ann.get("/admin/me").json()
    assert [quota["scope"].partition(":")[0] for quota in me["quotas"]] == ["key", "organization"]
    wanted = {"name": "bob", "user": "bob", "models": ["a"], "lanes": ["cluster"], "expires_in_s": 3600}
    endless = ann.post("/admin/keys", json=wanted | {"expires_in_s": None})
    assert (endless.status_code, endless.json()["error"]["param"]) == (403, "expires_in_s")
    made = ann.post("/admin/keys", json=wanted)
    assert made.status_code == 200, made.text
    bob = gateway.http(made.json()["api_key"])
    assert bob.get("/admin/users").status_code == 403
    assert bob.post("/admin/keys", json={"name": "more", "user": "bob"}).status_code == 403
    assert bob.get("/admin/me").json()["user"]["role"] == "member"

    told("users", "role", "bob", "seller")
    _seen_soon(lambda: bob.get("/admin/me").json()["user"]["role"] == "seller")
    rotated = told("key", "rotate", key["key_id"], "--grace", "0")
    _seen_soon(lambda: ann.get("/admin/me").status_code == 401)
    assert gateway.http(rotated["api_key"]).get("/admin/me").status_code == 200
    told("users", "remove", "bob")
    _seen_soon(lambda: bob.get("/admin/me").status_code == 401)
    told("key", "limit", "organization:lab", "spend", "none", "--per", "month")
    told("key", "revoke", key["key_id"])

    entries = [entry for entry in reversed(told("audit", "--limit", "100")) if entry["seq"] > start]
    assert [(entry["action"], entry["actor"]) for entry in entries] == [
        ("organization.add", "machine"),
        ("user.add", "machine"),
        ("user.add", "machine"),
        ("key.create", "machine"),
        ("quota.set", "machine"),
        ("quota.set", "machine"),
        ("key.create", "user:ann"),
        ("user.role", "machine"),
        ("key.rotate", "machine"),
        ("user.remove", "machine"),
        ("quota.remove", "machine"),
        ("key.revoke", "machine"),
    ]
    for token in (key["api_key"], rotated["api_key"], made.json()["api_key"]):
        assert token[10:] not in json.dumps(entries)


def _seen_soon(look: Any) -> None:
    until(lambda: look() or None)
