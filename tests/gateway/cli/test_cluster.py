"""Commands beside a gateway with a machine: models run on it, are planned, advised on; the doctor sees it."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import output
from tests.clusters import DEMO_MODEL
from tests.gateway.cli.beside import completed, data, millrace
from tests.gateways import Gateway, running_gateway

NAME = DEMO_MODEL.name
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("cluster")
    with running_gateway(folder, nodes=1, is_new=True) as gateway:
        loaded = data(millrace(gateway.folder, "run", str(DEMO_MODEL), "--json"))
        assert (loaded["lane"], loaded["status"]) == ("cluster", "ready")
        yield gateway


def test_a_gateway_without_a_model_gets_its_first_one_and_its_files_are_in_use(tmp_path: Path) -> None:
    with running_gateway(tmp_path, model=None, settings={"CLUSTER__NODES": "1"}) as gateway:
        assert data(millrace(gateway.folder, "ps", "--json")) == []
        assert data(millrace(gateway.folder, "run", str(DEMO_MODEL), "--json"))["status"] == "ready"
        said = millrace(gateway.folder, "chat", "--max-tokens", "4", "--json", said="Once\n")
        assert (json.loads(said.stdout)["lane"], json.loads(said.stdout)["model"]) == ("cluster", NAME)
        refused = millrace(gateway.folder, "rm", NAME)
        assert (refused.exit_code, f"`millrace stop --remove {NAME}`" in refused.stderr) == (output.REFUSED, True)


def test_models_are_run_beside_each_other_stopped_loaded_and_removed(gateway: Gateway) -> None:
    row, *_ = data(millrace(gateway.folder, "ps", "--json"))
    assert (row["model"], row["state"], row["where"], row["running"]) == (NAME, "ready", "cluster: node-1", 0)
    assert data(millrace(gateway.folder, "run", str(DEMO_MODEL), "--json"))["model"] == NAME
    words = ("run", str(DEMO_MODEL), "--name", "org/coder", "--idle", "1h30m", "--priority", "70", "--json")
    ran = data(millrace(gateway.folder, *words))
    assert (ran["model"], ran["status"]) == ("org/coder", "ready")
    rows = {row["model"]: row for row in data(millrace(gateway.folder, "ps", "--json"))}
    assert rows.keys() == {NAME, "org/coder"}
    assert 5000 < rows["org/coder"]["idle_left_s"] <= 5400
    assert re.search(r"ready .* in 1:\d\d:\d\d", millrace(gateway.folder, "ps").stdout)
    said = millrace(gateway.folder, "chat", "org/coder", "--max-tokens", "4", "--json", said="Once\n")
    assert (json.loads(said.stdout)["lane"], json.loads(said.stdout)["model"]) == ("cluster", "org/coder")
    used = millrace(gateway.folder, *words)
    assert (used.exit_code, used.stderr.startswith("error: --name: ")) == (output.REFUSED, True), used.stderr
    assert data(millrace(gateway.folder, "stop", "org/coder", "--json"))["stopped_at"] == ["cluster"]
    state = {row["model"]: row["state"] for row in data(millrace(gateway.folder, "ps", "--json"))}
    assert state == {NAME: "ready", "org/coder": "unloaded"}
    assert data(millrace(gateway.folder, "run", "org/coder", "--json"))["status"] == "ready"
    replaced = ("run", str(DEMO_MODEL), "--replace", "org/coder", "--precision", "int8", "--json")
    assert data(millrace(gateway.folder, *replaced))["model"] == "org/coder"
    rows = {row["model"]: row for row in data(millrace(gateway.folder, "ps", "--json"))}
    assert (rows["org/coder"]["precision"], rows["org/coder"]["idle_s"], len(rows)) == ("int8", None, 2)
    assert data(millrace(gateway.folder, "stop", "org/coder", "--remove", "--json")) == {"removed": "org/coder"}
    assert [row["model"] for row in data(millrace(gateway.folder, "ps", "--json"))] == [NAME]


def test_what_commands_of_models_refuse(gateway: Gateway) -> None:
    for words, code, said in (
        (("stop", "nothing"), output.FAILED, "MODEL: model 'nothing' not found"),
        (("stop", "nothing", "--remove"), output.FAILED, "MODEL: model 'nothing' not found"),
        (("run", str(DEMO_MODEL), "--idle", "soon"), output.WRONG_USAGE, "--idle soon: must be a duration"),
        (("run", str(DEMO_MODEL), "--name", "x", "--precision", "int2"), output.WRONG_USAGE, "--precision: "),
        (("run", str(DEMO_MODEL), "--replace", "nothing"), output.FAILED, "--replace: model 'nothing' not found"),
        (("rm", NAME), output.REFUSED, "the setting cluster.model names it"),
        (("stop", NAME, "--remove"), output.REFUSED, "MODEL: the setting cluster.model names"),
    ):
        refused = millrace(gateway.folder, *words)
        assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr


def test_advice_and_plans_are_about_the_machines_that_are_here(gateway: Gateway, tmp_path: Path) -> None:
    found = data(millrace(gateway.folder, "advise", str(DEMO_MODEL), "--json"))
    assert found["best"] == "one machine"
    assert found["ways"][0]["machines"] == ["node-1"]
    large = shutil.copytree(DEMO_MODEL, tmp_path / "large", ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((large / "config.json").read_text())
    (large / "config.json").write_text(json.dumps(config | {"intermediate_size": 2**24}))
    found = data(millrace(gateway.folder, "advise", str(large), "--json"))
    assert (found["best"], "short" in found["ways"][0]["why"]) == (None, True)
    assert millrace(gateway.folder, "plan", str(large)).exit_code == output.FAILED
    plan = data(millrace(gateway.folder, "plan", str(DEMO_MODEL), "--json"))["plan"]
    assert [stage["node"] for stage in plan["stages"]] == ["node-1"]
    assert data(millrace(gateway.folder, "plan", "--json"))["then"]["stages"][0]["node"] == "node-1"
    unknown = millrace(gateway.folder, "advise", "no-such-model")
    assert (unknown.exit_code, "owner/name" in unknown.stderr) == (output.FAILED, True)
    assert millrace(gateway.folder, "plan", str(DEMO_MODEL), "--precision", "int2").exit_code == output.WRONG_USAGE


def test_the_doctor_sees_the_cluster_and_fixes_what_is_open(gateway: Gateway) -> None:
    gateway.folder.chmod(0o755)
    found = data(millrace(gateway.folder, "doctor", "--json"))["findings"]
    levels = {finding["area"]: finding["level"] for finding in found}
    assert (levels["data directory"], levels["cluster"], levels["gateway"], levels["database"]) == (
        "warn",
        *["ok"] * 3,
    )
    mended = data(millrace(gateway.folder, "doctor", "--fix", "--json"))
    assert len(mended["mended"]) == 1
    assert gateway.folder.stat().st_mode & 0o077 == 0


def test_it_is_talked_to_and_completed(gateway: Gateway) -> None:
    talk = millrace(gateway.folder, "chat", "--max-tokens", "8", "--json", said="Once upon a time\n")
    assert (json.loads(talk.stdout)["lane"], json.loads(talk.stdout)["completion_tokens"]) == ("cluster", 8)
    assert completed("millrace chat ", gateway.folder) == [NAME]
    assert completed("millrace machines drain n", gateway.folder) == ["node-1"]


def test_a_machine_is_called_otherwise_wherever_it_is_shown(gateway: Gateway) -> None:
    done = data(millrace(gateway.folder, "machines", "rename", "node-1", "the mill", "--json"))
    assert (done["from"], done["to"]) == ("node-1", "the mill")
    assert [row["node"] for row in data(millrace(gateway.folder, "machines", "list", "--json"))] == ["the mill"]
    assert [row["node"] for row in data(millrace(gateway.folder, "nodes", "--json"))["nodes"]] == ["the mill"]
    draft = data(millrace(gateway.folder, "plan", "--json"))
    assert [draft[when]["stages"][0]["node"] for when in ("now", "then")] == ["the mill"] * 2
    assert data(millrace(gateway.folder, "ps", "--json"))[0]["where"] == "cluster: the mill"
    for words, code, beginning in (
        (("toaster", "x"), output.FAILED, "error: "),
        (("the mill", "a/b"), output.WRONG_USAGE, "error: NEW_NAME: "),
    ):
        refused = millrace(gateway.folder, "machines", "rename", *words)
        assert (refused.exit_code, refused.stderr.startswith(beginning)) == (code, True), refused.stderr
    said = millrace(gateway.folder, "machines", "rename", done["renamed"], "node-1")
    assert (said.exit_code, "the mill renamed to node-1" in said.stdout + said.stderr) == (0, True)
