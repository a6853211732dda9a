"""What is on this machine's disk: models pulled, gone on with, removed; a node that leaves; the doctor alone."""

import errno
import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from typer.testing import CliRunner, Result

from cluster.errors import ModelInvalid, ModelNotFound, WeightsMismatch
from cluster.models.store import find_model
from gateway.advice.model_shape import read_shape
from gateway.cli import output
from gateway.cli import pull as pulling
from gateway.cli.bench import step_of
from gateway.cli.chat_request import Answered
from gateway.cli.doctor import machine, outside
from gateway.cli.doctor.stores import stale_notice
from gateway.cli.download import fetch_blob
from gateway.cli.main import app
from runtime.data_folder import DataFolder
from tests.clusters import DEMO_MODEL
from tests.fakes.hub import Hub
from tests.gateways import complete_command


def millrace(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data-dir", str(folder)])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub({"acme/tiny": DEMO_MODEL}, break_after_bytes=3_000_000) as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


def test_a_pull_is_whole_once_and_gone_when_removed(hub: Hub, tmp_path: Path) -> None:
    pulled = json.loads(millrace(tmp_path, "pull", "acme/tiny", "--json").stdout)
    weights_bytes = (DEMO_MODEL / "model.safetensors").stat().st_size
    assert weights_bytes <= hub.sent_bytes["model.safetensors"] < weights_bytes + 2**20, (
        "it went on where it was cut"
    )
    assert pulled["bytes"] > weights_bytes
    again = json.loads(millrace(tmp_path, "pull", "acme/tiny", "--json").stdout)
    assert (again["folder"], again["fetched_bytes"]) == (pulled["folder"], 0)
    assert find_model("acme/tiny", tmp_path / "cluster" / "models") == Path(pulled["folder"])
    assert millrace(tmp_path, "plan", "acme/tiny").exit_code == 0
    removed = json.loads(millrace(tmp_path, "rm", "acme/tiny", "--json").stdout)
    assert removed["freed_bytes"] == pulled["bytes"]
    assert not Path(pulled["folder"]).exists()
    assert millrace(tmp_path, "pull", "acme/nothing").exit_code == output.FAILED


def test_without_a_hub_a_pull_fails_with_one_line(tmp_path: Path) -> None:
    """The hub's library alone tries for half a minute, and says so at each try."""
    away = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = complete_command("pull", "acme/none", "--data-dir", str(tmp_path), environment=away)
    line = "error: acme/none is not on this machine, and Hugging Face cannot be reached\n"
    assert (done.returncode, done.stderr) == (output.FAILED, line)


def test_a_pull_that_is_stopped_goes_on_where_it_was(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = pulling.Watch._advance

    def interrupt(watch: pulling.Watch, size_bytes: int) -> None:
        """As Ctrl-C does: each download ends at its next piece."""
        advance(watch, size_bytes)
        if size_bytes >= 1_000_000:
            watch.stop()

    with monkeypatch.context() as stopping:
        stopping.setattr(pulling.Watch, "_advance", interrupt)
        stopped = millrace(tmp_path, "pull", "acme/tiny")
    assert (stopped.exit_code, "resumes the download" in stopped.stderr) == (output.FAILED, True)
    before = hub.sent_bytes["model.safetensors"]
    assert json.loads(millrace(tmp_path, "pull", "acme/tiny", "--json").stdout)["files"] > 1
    assert ("model.safetensors", "bytes=1048576-") in hub.ranges
    weights_bytes = (DEMO_MODEL / "model.safetensors").stat().st_size
    assert hub.sent_bytes["model.safetensors"] - before == weights_bytes - 2**20
    folder = find_model("acme/tiny", tmp_path / "cluster" / "models")
    assert (folder / "model.safetensors").read_bytes() == (DEMO_MODEL / "model.safetensors").read_bytes()


def test_a_file_that_is_not_what_its_digest_says_is_thrown_away(hub: Hub, tmp_path: Path) -> None:
    blob = tmp_path / ("0" * 64)
    url = f"{hub.url}/acme/tiny/resolve/main/model.safetensors"
    size_bytes = (DEMO_MODEL / "model.safetensors").stat().st_size
    with pytest.raises(WeightsMismatch):
        fetch_blob(url, {}, blob, size_bytes, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_shape_is_read_without_weights_and_within_bounds(hub: Hub, tmp_path: Path) -> None:
    name, card = read_shape("acme/tiny@main", tmp_path)
    assert (name, card.layers, "model.safetensors" in hub.sent_bytes) == ("acme/tiny", 8, False)
    with pytest.raises(ModelNotFound, match="nothing"):
        read_shape("acme/nothing", tmp_path)
    large = tmp_path / "large"
    shutil.copytree(DEMO_MODEL, large, ignore=shutil.ignore_patterns("*.safetensors"))
    config: dict[str, Any] = json.loads((large / "config.json").read_text())
    for wrong in ({"num_hidden_layers": 10**9}, {"text_config": {"n_layer": 10**9}}):
        (large / "config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(ModelInvalid, match="layers"):
            read_shape(str(large), tmp_path)


def test_a_full_disk_ends_a_command_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "node" / "identity").mkdir(parents=True)
    monkeypatch.setattr("gateway.cli.leave._forget", full)
    refused = millrace(tmp_path, "leave")
    assert (refused.exit_code, refused.stderr.strip()) == (output.FAILED, "error: No space left on device")


def test_a_node_that_leaves_forgets_its_cluster_unless_it_runs(tmp_path: Path) -> None:
    from gateway.cli.leave import only_node

    node = tmp_path / "node"
    for name in ("identity", "models/0a"):
        (node / name).mkdir(parents=True)
        (node / name / "file").write_text("content")
    (node / "pace.json").write_text("{}")
    with only_node(node):
        refused = millrace(tmp_path, "leave")
        assert (refused.exit_code, "millrace join" in refused.stderr) == (output.REFUSED, True)
        assert (node / "identity").exists()
    assert json.loads(millrace(tmp_path, "leave", "--json").stdout) == {"left": True, "freed_bytes": 14}
    assert sorted(path.name for path in node.iterdir()) == ["lock", "pace.json"]


def test_the_doctor_without_a_gateway_says_what_it_cannot_see(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    found = json.loads(millrace(folder, "doctor", "--json").stdout)["findings"]
    by_area = {finding["area"]: finding for finding in found}
    assert by_area["cluster"]["level"] == "unseen"
    assert "millrace up" in by_area["cluster"]["remedy"]
    assert {
        "settings",
        "memory",
        "driver",
        "disk",
        "clock",
        "ports",
        "database",
        "data directory",
    } <= by_area.keys()
    assert all(finding["remedy"] for finding in found if finding["level"] != "ok")
    assert not folder.exists(), "looking makes nothing"


def test_the_doctor_fails_for_what_stops_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("A=b\n")
    keys.chmod(0o644)
    (tmp_path / "millrace.db").write_text("no database at all, but long enough to be read as one")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MILLRACE_SERVER__PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("MILLRACE_CLOUD__KEYS_FILE", str(keys))
        monkeypatch.setenv("MILLRACE_REDIS__URL", "redis://:hush@127.0.0.1:9/0")
        done = millrace(tmp_path, "doctor", "--fix", "--json")
    assert done.exit_code == output.FAILED
    fails = {f["area"]: f for f in json.loads(done.stdout)["findings"] if f["level"] == "fail"}
    assert fails.keys() == {"ports", "database", "redis"}, "the keys file was closed"
    assert keys.stat().st_mode & 0o077 == 0
    assert "hush" not in done.stdout + done.stderr
    monkeypatch.setenv("MILLRACE_CLUSTER__NODE", "1")
    wrong = json.loads(millrace(tmp_path, "doctor", "--json").stdout)["findings"]
    assert next(f for f in wrong if f["area"] == "settings")["level"] == "fail"
    assert next(f for f in wrong if f["area"] == "memory")


def test_a_gateway_that_was_killed_leaves_nothing_behind_for_good(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.write_running("http://127.0.0.1:9/v1", "token")
    assert stale_notice(folder) is None, "this very process lives"
    (tmp_path / "running.json").write_text(
        json.dumps({"pid": 2**22 + 1, "base_url": "http://x/v1", "admin_token": ""})
    )
    stale = stale_notice(folder)
    assert stale
    assert stale.mend
    stale.mend()
    assert folder.read_running() is None


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("NVIDIA L4, 570.1, 23034, 22000", "ok"),
        ("NVIDIA L4, 570.1, 23034, 100", "warn"),
        ("NVIDIA GB10, 580.9, [N/A], [N/A]", "ok"),
    ],
)
def test_cards_that_are_full_are_told(line: str, level: str) -> None:
    found = machine._card(line)
    assert (found.level, line.split(",")[0] in found.what) == (level, True)


def test_machines_and_their_links_are_judged() -> None:
    node = {"node": "desk", "warnings": [{"what": "its clock is 9 s ahead", "remedy": "turn on NTP"}]}
    link = {"from": "desk", "to": "shed", "delay_ms": 0.4, "jitter_ms": 0.1, "mbit_per_s": 940.0}
    model = {"model": "m", "status": "waiting", "reason": "no room"}
    facts = {"deployments": [model, model | {"status": "ready"}], "epoch": 3}
    links = [link | {"mtu_bytes": 1500}, link | {"mtu_bytes": 1280}]
    found = list(outside.machines(facts | {"nodes": [node, node | {"warnings": []}], "links": links}))
    levels = [(each.area, each.level) for each in found]
    assert levels == [
        ("cluster", "fail"),
        ("cluster", "ok"),
        ("cluster", "warn"),
        ("links", "ok"),
        ("links", "warn"),
    ]
    assert "0.40 ms, 940 Mbit/s, MTU 1280" in found[-1].what
    unmeasured = list(outside.machines(facts | {"nodes": [node, node], "links": []}))
    assert unmeasured[-1].level == "unseen"


def test_settings_are_shown_with_their_source_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "millrace.toml").write_text(
        '[cluster]\nprecision = "int8"\n[[pool.backends]]\nname = "a"\n'
        'base_url = "http://h/v1"\napi_key = "hush"\n'
    )
    monkeypatch.setenv("MILLRACE_SERVER__PORT", "9123")
    monkeypatch.setenv("MILLRACE_CLOUD__PROXIES__HTTPS_PROXY", "http://me:hush@proxy:1")
    monkeypatch.setenv("MILLRACE_DATABASE__DSN", "postgresql://me:hush@h/db")
    done = millrace(tmp_path, "config", "show", "--json")
    found = json.loads(done.stdout)
    assert "hush" not in done.stdout
    assert found["server.port"] == {"value": 9123, "from": "environment"}
    assert found["cluster.precision"] == {"value": "int8", "from": "file"}
    assert found["cluster.slots"]["from"] == "default"
    assert (found["data_dir"]["from"], found["pool.backends"]["from"]) == ("command line", "file")
    changed = json.loads(millrace(tmp_path, "config", "show", "cluster", "--changed", "--json").stdout)
    assert list(changed) == ["cluster.precision"]
    assert millrace(tmp_path, "config", "path").stdout.strip() == str(tmp_path / "millrace.toml")


def test_figures_of_a_step_are_of_whole_answers_and_say_what_failed() -> None:
    answers = [Answered("t", "pool", "m", 9, 11, first_s, first_s + 1.0) for first_s in (0.1, 0.3, 0.2)]
    found = step_of(3, answers, ["it broke off"], 2.0)
    assert (found.answers, found.failed, found.why, found.lanes) == (3, 1, "it broke off", ("pool",))
    assert (found.first_p50_s, found.first_p95_s, round(found.each_tokens_per_s)) == (0.2, 0.3, 10)
    assert found.all_tokens_per_s == 33 / 2.0
    at_once = Answered("t", "pool", "m", 9, 11, 0.5, 0.5)
    assert at_once.tokens_per_s == 22, "not the speed of a buffer"
    assert step_of(1, [], ["no"], 1.0).first_p95_s == 0
