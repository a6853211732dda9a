"""`millrace pool` and /admin/pool against a real gateway that meets a server for the first time."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests.fakes import pool_servers as servers
from tests.gateways import Gateway, running_gateway

pytestmark = pytest.mark.anyio

ALIASES = {"POOL__ALIASES": '{"gpt-4o-mini": ["Qwen/Qwen3-8B"]}'}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("pool")
    with running_gateway(folder, model=None, settings=ALIASES) as gateway:
        yield gateway


def answer_of(folder: Path, root: str, path: str, body: object) -> tuple[int, str]:
    running = DataFolder(folder).read_running()
    assert running
    headers = {HEADER: running["admin_token"]}
    answer = httpx.post(root + path, json=body, headers=headers, timeout=60, trust_env=False)
    return answer.status_code, answer.text


async def test_found_added_drained_and_taken_out(gateway: Gateway) -> None:
    async def millrace(*words: str) -> str:
        return await asyncio.to_thread(gateway.cli, "pool", *words, "--json")

    async with servers.running(servers.vllm()) as server:
        port = str(server.port)
        found = json.loads(await millrace("scan", "127.0.0.1", "--port", port))["found"]
        assert [(one["kind"], one["in_pool_as"]) for one in found] == [("vllm", None)]
        assert json.loads(await millrace("scan", f"127.0.0.1:{port}")) == {"looked_at": 1, "found": found}
        added = json.loads(await millrace("scan", f"127.0.0.1:{port}", "--add"))["found"][0]
        name = added["in_pool_as"]
        assert added["added"]
        row = json.loads(await millrace("list"))[0]
        assert (row["name"], row["state"], row["running"]) == (name, "ready", 5)
        assert row["served_as"] == {"gpt-4o-mini": "Qwen/Qwen3-8B"}
        shown = gateway.openai()
        names = [model.id for model in await asyncio.to_thread(lambda: list(shown.models.list()))]
        assert {"gpt-4o-mini", "Qwen/Qwen3-8B"} <= set(names)
        assert json.loads(await millrace("alias", "gpt-4o", "Qwen/Qwen3-8B"))["models"] == ["Qwen/Qwen3-8B"]
        origins = {row["alias"]: row["origin"] for row in json.loads(await millrace("aliases"))}
        assert origins == {"gpt-4o": "set", "gpt-4o-mini": "settings"}
        assert json.loads(await millrace("list"))[0]["served_as"]["gpt-4o"] == "Qwen/Qwen3-8B"
        assert json.loads(await millrace("unalias", "gpt-4o")) == {"removed": "gpt-4o"}
        assert json.loads(await millrace("drain", name))["state"] == "draining"
        assert json.loads(await millrace("undrain", name))["state"] == "ready"
        assert json.loads(await millrace("remove", name)) == {"removed": name}
        assert json.loads(await millrace("list")) == []


BAD: tuple[tuple[str, dict[str, object], str], ...] = (
    ("/admin/pool/backends", {"name": "a/b", "base_url": "http://desk"}, "name"),
    ("/admin/pool/backends", {"name": "desk", "base_url": "file:///etc/passwd"}, "base_url"),
    ("/admin/pool/backends", {"name": "desk", "base_url": "http://desk", "api_key": "a\r\nb: c"}, "api_key"),
    ("/admin/pool/backends", {"name": "desk", "base_url": "http://desk", "kind": "gpt"}, "kind"),
    ("/admin/pool/backends", {"name": "desk", "base_url": "http://desk", "colour": "red"}, "colour"),
    ("/admin/pool/scan", {}, "hosts"),
    ("/admin/pool/scan", {"hosts": ["8.8.8.8"]}, "hosts"),
    ("/admin/pool/scan", {"hosts": ["127.0.0.1"], "ports": [0]}, "ports"),
    ("/admin/pool/scan", {"hosts": ["127.0.0.1"] * 1000}, "hosts"),
)


@pytest.mark.parametrize(("path", "body", "field"), BAD)
async def test_what_cannot_be_is_a_400_that_names_the_field(
    gateway: Gateway, path: str, body: object, field: str
) -> None:
    status, text = await asyncio.to_thread(answer_of, gateway.folder, gateway.root, path, body)
    assert status == 400, text
    assert str(json.loads(text)["error"]["param"]).startswith(field), text


def test_nobody_else_may(gateway: Gateway) -> None:
    answer = httpx.get(gateway.root + "/admin/pool", timeout=60, trust_env=False)
    assert answer.status_code == 401
