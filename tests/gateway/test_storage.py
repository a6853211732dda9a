"""A data directory that is deleted or full while the gateway runs: nothing is acknowledged that is not kept."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder
from tests import crowds
from tests.crowds import FREE, PAID, ask, new_key, question
from tests.fakes.counting_provider import counting_provider
from tests.gateways import PATIENCE_S, Gateway, complete_command, running_gateway, until

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"free","messages":[]}}\n'


@dataclass
class Running:
    """A gateway with a free and a paid model, an admin's client that needs no file, and Ann's key and credits."""

    gateway: Gateway
    key: str = ""
    admin: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        until(lambda: ask(self.gateway, self.gateway.api_key, FREE).status == 200 or None)
        running = DataFolder(self.gateway.folder).read_running()
        assert running
        headers = {HEADER: running["admin_token"]}
        self.admin = httpx.Client(base_url=self.gateway.root, headers=headers, timeout=PATIENCE_S, trust_env=False)
        self.gateway.clients.append(self.admin)
        self.key = new_key(self.gateway, "ann")
        self.gateway.cli("credit", "add", "5", "--user", "ann")
        assert ask(self.gateway, self.key, PAID).status == 200

    def asked_to_keep(self) -> dict[str, httpx.Response]:
        """Everything that promises to keep something."""
        ann = self.gateway.http(self.key)
        backend = {"name": "attic", "base_url": "http://127.0.0.1:9/v1"}
        credit = {"user": "ann", "amount": "1", "reason": "test"}
        return {
            "key": self._post("/admin/keys", {"name": "new", "user": "ann", "lanes": ["pool"]}),
            "person": self._post("/admin/users", {"user": "eve"}),
            "credit": self._post("/accounting/v1/credits", credit, {"Idempotency-Key": "a"}),
            "backend": self._post("/admin/pool/backends", backend),
            "paid": ann.post("/v1/chat/completions", json=question(PAID)),
            "response": ann.post("/v1/responses", json={"model": FREE, "input": "hello"}),
            "file": ann.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", LINE)}),
        }

    def is_ready(self) -> bool:
        return self.admin.get("/readyz").status_code == 200

    def _post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> httpx.Response:
        return self.admin.post(path, json=body, headers=headers)


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        provider = stack.enter_context(counting_provider())
        settings = crowds.settings(provider, folder.parent)
        yield Running(stack.enter_context(running_gateway(folder, model=None, settings=settings)))


def assert_nothing_is_kept(instance: Running, reason: str) -> None:
    until(lambda: None if instance.is_ready() else True)
    refused = instance.asked_to_keep()
    for about, answer in refused.items():
        error = answer.json()["error"]
        codes = {"database_unavailable", "storage_unavailable"}
        assert answer.status_code == 503, (about, answer.text)
        assert error["code"] in codes, (about, answer.text)
        assert error["type"] == "server_error", "no provider is blamed"
        assert str(instance.gateway.folder) not in answer.text
    assert ask(instance.gateway, instance.key, FREE).status == 200, "what needs no disk goes on"
    assert reason in instance.admin.get("/readyz").json()["reason"]
    assert reason in instance.admin.get("/healthz").json()["reason"]


def unlink_database(folder: Path) -> None:
    (folder / "millrace.db").unlink()


@pytest.mark.parametrize("delete", [shutil.rmtree, pytest.param(unlink_database, marks=pytest.mark.slow)])
def test_nothing_is_acknowledged_once_the_data_is_deleted(delete: Callable[[Path], None], tmp_path: Path) -> None:
    with running(tmp_path / "data") as instance:
        delete(instance.gateway.folder)
        assert_nothing_is_kept(instance, "was removed or replaced")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 12 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        while folder.is_mount():
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(ballast: Path) -> Path:
    """Until its disk has no room."""
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"x" * 4096)
    return ballast


def test_nothing_is_acknowledged_while_the_disk_is_full(small_disk: Path) -> None:
    with running(small_disk) as instance:
        ballast = fill(small_disk / "ballast")
        assert_nothing_is_kept(instance, "is full")
        assert any("is full" in each for each in _found_by_doctor(instance.gateway))
        ballast.unlink()
        until(lambda: instance.is_ready() or None)
        kept = instance.asked_to_keep()
        assert {about: answer.status_code for about, answer in kept.items()} == dict.fromkeys(kept, 200)
        client = instance.gateway.http(instance.key)
        response_id = kept["response"].json()["id"]
        assert client.get(f"/v1/responses/{response_id}").status_code == 200


def test_the_doctor_and_readyz_tell_that_the_disk_is_read_only(small_disk: Path) -> None:
    with running(small_disk) as instance:
        # Over itself: files that are open for writing stay so, and opening another is refused.
        for options in (["--bind", str(small_disk)], ["-o", "remount,bind,ro"]):
            subprocess.run(["mount", *options, str(small_disk)], check=True)
        until(lambda: None if instance.is_ready() else True)
        assert "is read-only" in instance.admin.get("/readyz").json()["reason"]
        assert any("is read-only" in each for each in _found_by_doctor(instance.gateway))


def _found_by_doctor(gateway: Gateway) -> list[str]:
    done = complete_command("doctor", "--json", "--data-dir", str(gateway.folder))
    return [each["what"] for each in json.loads(done.stdout)["findings"] if each["level"] == "fail"]
