"""More keys, users and limits than one answer has: every list pages to its end, and says that there is more."""

import html
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from gateway.identity.caller import HOME
from gateway.identity.tables import api_key_table, quota_table, user_table
from runtime.database import open_engine, write_sessions
from tests.console.browsing import admin_key
from tests.gateways import Gateway, running_gateway

MANY = 2_050
LIMIT_NANO = 7_250_000_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Beside its owner and first key it has MANY users with one key and one budget each, older than any other."""
    with running_gateway(tmp_path_factory.mktemp("many"), model=None, nodes=0) as running:
        engine = open_engine(f"sqlite:///{running.folder / 'millrace.db'}")
        began_ns = time.time_ns() - 10**15
        with write_sessions(engine)() as session, session.begin():
            users, keys, quotas = zip(*(_user(number, began_ns) for number in range(MANY)), strict=True)
            session.execute(user_table.insert(), users)
            session.execute(api_key_table.insert(), keys)
            session.execute(quota_table.insert(), quotas)
        engine.dispose()
        yield running


def _user(number: int, began_ns: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Several at a time, as a script makes them: a page may end between two of the same time."""
    at_ns, user = began_ns + number // 8, f"user-{number:05}"
    user_row = {"user_id": user, "organization_id": HOME, "name": user, "role": "member", "created_ns": at_ns}
    key_id = f"{number:032x}"
    key: dict[str, Any] = {
        "key_id": key_id,
        "name": f"key-{number:05}",
        "prefix": f"mr-{number:05}",
        "digest": f"digest {number}",
    }
    key |= {"user_id": user, "department": HOME, "lanes": "cluster", "created_ns": at_ns}
    quota = {"scope": f"key:{key_id}", "measure": "spend", "span": "month", "model": "", "amount": LIMIT_NANO}
    return user_row, key, quota


def _pages(gateway: Gateway, path: str, name: str, cursor: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    place: dict[str, Any] = {}
    while True:
        page = gateway.admin(f"{path}?{httpx.QueryParams(place)}")
        found += page[name]
        if page["next"] is None:
            return found
        assert len(page[name]) == 1000
        place = {cursor: page["next"]}


def test_the_api_pages_through_every_key_user_and_limit(gateway: Gateway) -> None:
    for path, name, cursor, mark, is_theirs in (
        ("/admin/keys", "keys", "before", "name", "key-"),
        ("/admin/users", "users", "after", "user_id", "user-"),
        ("/admin/quotas", "quotas", "offset", "scope", "key:"),
    ):
        found = [row[mark] for row in _pages(gateway, path, name, cursor) if row[mark].startswith(is_theirs)]
        assert len(found) == len(set(found)) == MANY, path
    keys = gateway.admin("/admin/keys?limit=3")["keys"]
    assert [key["created_ns"] for key in keys] == sorted((key["created_ns"] for key in keys), reverse=True)
    for path in ("/admin/keys?before=x", "/admin/users?after=1.a%00b", "/admin/quotas?offset=-1"):
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            gateway.admin(path)


def test_commands_say_where_the_next_page_begins(gateway: Gateway) -> None:
    for words, option, mark in (
        (("key", "list"), "--before", "key_id"),
        (("users", "list"), "--after", "user_id"),
        (("budget", "list"), "--offset", "scope"),
    ):
        found: list[str] = []
        place: list[str] = []
        for _ in range(3):
            shown = _millrace(gateway, *words, "--limit", "100", "--json", *place)
            found += [row[mark] for row in json.loads(shown.stdout)]
            said = re.search(rf"only 100 shown; see more with {option} (\S+)", shown.stderr)
            assert said, shown.stderr
            place = [option, said[1]]
        assert len(set(found)) == 300
    everything = _millrace(gateway, "key", "list")
    assert "only 1000 shown" in everything.stderr
    # The oldest key, on the last page, by the place that the one before it has.
    second = gateway.admin("/admin/keys?user=user-00001")["keys"][0]
    last = _millrace(gateway, "key", "list", "--json", "--before", f"{second['created_ns']}.{second['key_id']}")
    assert [row["name"] for row in json.loads(last.stdout)] == ["key-00000"]
    assert last.stderr == ""


def _millrace(gateway: Gateway, *words: str) -> Result:
    result = CliRunner().invoke(app, [*words, "--data-dir", str(gateway.folder)])
    assert result.exit_code == 0, result.output
    return result


def test_the_console_pages_through_every_key_and_user(gateway: Gateway) -> None:
    with httpx.Client(
        base_url=gateway.root, headers={"accept": "text/html"}, trust_env=False, timeout=60
    ) as client:
        assert client.post("/console/login", data={"key": admin_key(gateway)}).status_code == 303
        for path, pattern, size, next_label in (
            ("/console/keys", r">key-(\d{5})<", 50, "Older"),
            ("/console/keys/users", r">user-(\d{5})<", 100, "Next"),
        ):
            seen: list[str] = []
            address = path
            for _ in range(3):
                text = _text(client, address)
                assert re.search(rf"{size} of 2[,. ]?0\d\d (keys|users)", text), "it says that it is a part"
                seen += re.findall(pattern, text)
                found = re.search(rf'href="([^"]+)">{next_label} ', text)
                assert found
                address = str(httpx.URL(f"{gateway.root}{path}").join(html.unescape(found[1])))
            assert len(seen) == len(set(seen)) > 2 * size
        # The oldest and the newest of them are found by name, with the limit that is theirs.
        for name in ("key-00000", f"key-{MANY - 1:05}"):
            text = _text(client, f"/console/keys?text={name.upper()}")
            assert re.findall(r">(key-\d{5})<", text) == [name]
            assert "of $7.25" in text
            assert "Older" not in text
        assert f">user-{MANY - 1:05}<" in _text(client, f"/console/keys/users?text=USER-{MANY - 1:05}")
        assert client.get("/console/keys?before=x").status_code == 400


def _text(client: httpx.Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return answer.text
