"""Commands against a running gateway, and what is around it: IPv6, proxies, a lost stderr, an open folder."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests.clusters import DEMO_MODEL
from tests.gateways import PATIENCE_S, Gateway, running_gateway

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("open")
    folder.chmod(0o755)
    with running_gateway(folder, model=None, settings={"SERVER__HOST": "::1"}, is_new=True) as gateway:
        yield gateway


def test_an_ipv6_address_can_be_handed_on(gateway: Gateway) -> None:
    assert re.fullmatch(r"millrace join \[::1\]:\d+ --token \S+\n", gateway.cli("token", "create"))


def test_no_proxy_sees_the_admin_token(gateway: Gateway) -> None:
    through_a_proxy = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), NOWHERE)
    without_exceptions = {"NO_PROXY": "", "no_proxy": ""}
    shown = json.loads(gateway.cli("nodes", "--json", environment=through_a_proxy | without_exceptions))
    assert shown["nodes"] == []


def test_a_machine_that_is_not_there_is_named(gateway: Gateway) -> None:
    assert json.loads(gateway.cli("machines", "list", "--json")) == []
    running = DataFolder(gateway.folder).read_running()
    assert running
    for what in ("remove", "drain?undo=true"):
        answer = gateway.http().post(f"/admin/machines/no%2Fbody/{what}", headers={HEADER: running["admin_token"]})
        assert answer.status_code == 404
        assert gateway.http().post(f"/admin/machines/nobody/{what}").status_code == 403
    answer = gateway.http().post("/admin/machines/nobody/drain", headers={HEADER: running["admin_token"]})
    assert "machine nobody not found" in answer.json()["error"]["message"]
    answer = gateway.http().post("/admin/plan", headers={HEADER: running["admin_token"]}, json={"without": []})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        404,
        "no model is loaded that could be planned; name one",
    )


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "many"])
def test_a_limit_that_cannot_be_is_refused_in_the_usual_shape(gateway: Gateway, limit: str) -> None:
    running = DataFolder(gateway.folder).read_running()
    assert running
    answer = gateway.http().get(f"/admin/requests?limit={limit}", headers={HEADER: running["admin_token"]})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == "limit"


def test_what_a_gateway_makes_in_an_open_folder_is_closed(gateway: Gateway) -> None:
    made = list(gateway.folder.iterdir())
    assert {"millrace.db", "millrace.db-wal", "cluster"} <= {path.name for path in made}
    assert [path for path in made if path.stat().st_mode & 0o077] == []
    assert any("open to other users" in line for line in gateway.log)


@pytest.mark.slow
def test_a_script_that_starts_it_again_and_again_leaves_two_keys(tmp_path: Path) -> None:
    tokens = []
    for _ in range(3):
        with running_gateway(tmp_path, model=None) as gateway:
            tokens.append(gateway.api_key)
            valid = [
                row["name"] for row in json.loads(gateway.cli("key", "list", "--json")) if not row["revoked_ns"]
            ]
            answers = [_models(gateway, token).status_code for token in tokens]
    assert sorted(valid) == ["first key", "up --json"]
    assert answers == [200, 401, 200]


def _models(gateway: Gateway, token: str) -> httpx.Response:
    return gateway.http(token).get("/v1/models")


@pytest.mark.slow
def test_a_lost_stderr_neither_holds_up_nor_ends_it(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gateway", "up", "--json", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--model", str(DEMO_MODEL), "--nodes", "1"],
        stdout=subprocess.PIPE,
        stderr=writing,
        start_new_session=True,
        text=True,
    ) as process:
        os.close(writing)
        assert process.stdout
        try:
            facts = json.loads(process.stdout.readline())
            ready = httpx.get(
                facts["base_url"].removesuffix("/v1") + "/readyz", trust_env=False, timeout=PATIENCE_S
            )
            process.send_signal(signal.SIGTERM)
            status = process.wait(PATIENCE_S)
        finally:
            process.kill()
    assert ready.status_code == 200
    assert status == 0
