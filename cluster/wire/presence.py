"""Messages about presence: between the controller and a node's agent, and between an agent and its children."""

from typing import Annotated

from msgspec import Meta, Struct

from cluster.machine import Condition, Machine
from cluster.plans.network import Link
from cluster.trust.identity import NodeId
from cluster.wire.addresses import Address
from cluster.wire.orders import DeploymentName

DEPLOYMENTS_MAX = 64
"""Deployments that one node may have processes of."""

LINK_PEERS_MAX = 8
"""Links that one order may have a node measure."""


class Hello(Struct, frozen=True, tag=True):
    """A machine that asks to take part, and its program. Other nodes may fetch its files at `files_port`.

    The controller refuses another program or protocol, naming both versions. `torch` is for information only.
    """

    name: str
    machine: Machine
    program: str = ""
    protocol: int = 0
    torch: str = ""
    files_port: int = 0


class Welcome(Struct, frozen=True, tag=True):
    """The controller's answer to Hello. Both times are in milliseconds."""

    heartbeat_ms: int
    patience_ms: int


class Vitals(Struct, frozen=True, array_like=True):
    """A process's progress in the current pipeline: frames in and out. A coordinator adds what it holds."""

    received: int
    sent: int
    requests: int = 0
    kv_blocks: int = 0


class ProcessReport(Struct, frozen=True):
    """A deployment's processes on a node. `vitals` are by role; `silent` names the roles without a sign of life.

    `held_bytes` is the memory of loaded weights and caches, which is free again once the processes end.
    """

    held_bytes: int = 0
    vitals: dict[str, Vitals] = {}
    silent: list[str] = []


class Heartbeat(Struct, frozen=True, tag=True):
    """A node's regular report: its free memory less the system's reserve, and the processes of each deployment.

    The name "" stands for the idle stage process. `sent_at_s` is the machine's own clock, in seconds since 1970.
    """

    memory_free_bytes: int
    processes: Annotated[dict[DeploymentName, ProcessReport], Meta(max_length=DEPLOYMENTS_MAX)] = {}
    sent_at_s: float = 0.0


class MeasureLinks(Struct, frozen=True, tag=True):
    """The order to measure the links to these echo servers, one after the other."""

    peers: list[Address]


class MeasuredLink(Struct, frozen=True):
    """The link from the reporting node to another one. Without figures, `reason` says why there are none."""

    node_id: NodeId
    link: Link | None
    reason: str = ""


class LinkReport(Struct, frozen=True, tag=True):
    """A node's report: the port of its echo server, its machine's condition and the measured links."""

    port: int
    links: list[MeasuredLink] = []
    condition: Condition = Condition()


class Renew(Struct, frozen=True, tag=True):
    """A node's request to certify the same key again, because its certificate expires soon."""

    signing_request_pem: str


class Renewed(Struct, frozen=True, tag=True):
    """The answer to Renew."""

    certificate_pem: str


class Removed(Struct, frozen=True, tag=True):
    """All removed machines whose certificates are still valid. No machine may talk to them."""

    node_ids: list[NodeId]


class Tick(Struct, frozen=True, tag=True):
    """A sign of life: the controller's answer to a heartbeat; between agent and child, question and answer."""

    vitals: Vitals | None = None
