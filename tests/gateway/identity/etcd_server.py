"""Debian's etcd on loopback, in folders of the test's: members that can be killed, frozen and started again."""

import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# Or what `make test-slow` has unpacked.
ETCD = shutil.which("etcd") or shutil.which(str(Path(__file__).parents[3] / ".bench/etcd/usr/bin/etcd"))
_STOP_S = 60.0


@dataclass
class Member:
    """One process; its data outlive it."""

    name: str
    folder: Path
    client_port: int
    peer_port: int
    cluster: str = ""
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self) -> None:
        assert ETCD
        flags = {
            "name": self.name,
            "data-dir": str(self.folder / self.name),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": self.cluster,
            "initial-cluster-state": "new",
            "log-level": "error",
            "heartbeat-interval": "100",
            "election-timeout": "1000",
        }
        command = [ETCD, *(f"--{flag}={value}" for flag, value in flags.items())]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self.process
        self.process.wait(_STOP_S)

    def signal(self, number: signal.Signals) -> None:
        assert self.process
        self.process.send_signal(number)


@dataclass
class Etcd:
    """A cluster of so many members."""

    folder: Path
    size: int
    members: list[Member] = field(default_factory=list)

    def __enter__(self) -> "Etcd":
        ports = _free_ports(2 * self.size)
        self.members = [Member(f"m{n}", self.folder, ports[2 * n], ports[2 * n + 1]) for n in range(self.size)]
        cluster = ",".join(f"{member.name}={member.peer}" for member in self.members)
        for member in self.members:
            member.cluster = cluster
            member.start()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            with suppress(ProcessLookupError):
                member.kill()

    @property
    def urls(self) -> list[str]:
        return [member.url for member in self.members]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
