"""The cloud worker's program, as the gateway runs it."""

from pathlib import Path

import msgspec

from gateway.lanes.cloud.worker.providers import CloudConfiguration, Orders
from runtime.workers.supervisor import HealthPolicy, Worker
from runtime.workers.worker_process import Program


def cloud_program(configuration: CloudConfiguration) -> Program:
    def orders(socket_path: str) -> bytes:
        return msgspec.json.encode(Orders(socket_path, configuration))

    return Program("cloud_worker", "gateway.lanes.cloud.worker", orders, configuration.limits.drain_s)


class CloudWorker(Worker):
    """The worker that runs the cloud worker's program."""

    def __init__(self, configuration: CloudConfiguration, health_policy: HealthPolicy | None = None) -> None:
        super().__init__(cloud_program(configuration), health_policy)
        self._configuration = configuration

    @property
    def keys_file(self) -> Path:
        """Return the path of the providers' keys file."""
        return Path(self._configuration.keys_file)
