"""What operators must mend is told by /readyz, `millrace doctor` and the Overview while other lanes answer."""

import json
from pathlib import Path

from tests import crowds
from tests.crowds import FREE, ask
from tests.fakes.counting_provider import counting_provider
from tests.gateways import Gateway, complete_command, running_gateway, until
from tests.templates import children_of

MODULE = "gateway.lanes.cloud.worker"


def warnings(gateway: Gateway) -> str:
    answer = gateway.http().get("/readyz")
    assert answer.status_code == 200
    return "; ".join(answer.json()["warnings"])


def doctor(gateway: Gateway) -> list[str]:
    """Everything that is to be put right."""
    done = complete_command("doctor", "--json", "--data-dir", str(gateway.folder))
    return [each["what"] for each in json.loads(done.stdout)["findings"] if each["level"] == "fail"]


def test_a_missing_key_file_and_a_dead_worker_are_told(tmp_path: Path) -> None:
    with (
        counting_provider() as provider,
        running_gateway(tmp_path / "data", model=None, settings=crowds.settings(provider, tmp_path)) as gateway,
    ):
        until(lambda: ask(gateway, gateway.api_key, FREE).status == 200 or None)
        worker = until(lambda: next(iter(children_of(gateway.processes()[0], MODULE)), None))
        until(lambda: any("worker.ready" in line for line in gateway.log) or None)
        assert warnings(gateway) == ""
        worker.kill()
        until(lambda: "cloud worker has ended" in warnings(gateway) or None)
        until(lambda: warnings(gateway) == "" or None)
        (tmp_path / "cloud.keys").unlink()
        assert "cloud key file" in warnings(gateway)
        assert str(tmp_path) not in warnings(gateway)
        assert any("the cloud key file cannot be read" in each for each in doctor(gateway))
        assert ask(gateway, gateway.api_key, FREE).status == 200
