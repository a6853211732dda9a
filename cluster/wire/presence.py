"""Being there: between the controller and a node's agent, and between an agent and its children."""

from msgspec import Struct

from cluster.machine import Condition, Machine
from cluster.plans.network import Link
from cluster.trust.identity import NodeId
from cluster.wire.addresses import Address

LINK_PEERS_MAX = 8
"""Links that one order may have a node measure."""


class Hello(Struct, frozen=True, tag=True):
    """Who wants to take part, with which program; at `files_port` other nodes may fetch what it holds.

    The controller refuses another program or protocol, naming both; `torch` is for people.
    """

    name: str
    machine: Machine
    program: str = ""
    protocol: int = 0
    torch: str = ""
    files_port: int = 0


class Welcome(Struct, frozen=True, tag=True):
    heartbeat_ms: int
    patience_ms: int


class Vitals(Struct, frozen=True, array_like=True):
    """How far a process has come in the present ring: frames in and out; of a head also what it holds."""

    received: int
    sent: int
    requests: int = 0
    kv_blocks: int = 0


class Heartbeat(Struct, frozen=True, tag=True):
    """`vitals` are by role; `silent` names the roles whose processes show no sign of life.

    `sent_at_s` is the machine's own clock, in seconds since 1970.
    """

    memory_usable_bytes: int
    vitals: dict[str, Vitals] = {}
    silent: list[str] = []
    sent_at_s: float = 0.0


class MeasureLinks(Struct, frozen=True, tag=True):
    """Measure the links to these echo doors, one after the other."""

    peers: list[Address]


class MeasuredLink(Struct, frozen=True):
    """From the reporting node to another one; without figures it could not be measured, for this reason."""

    node_id: NodeId
    link: Link | None
    reason: str = ""


class LinkReport(Struct, frozen=True, tag=True):
    """A node's echo door is on `port`; how its machine does; and the links that it was told to measure."""

    port: int
    links: list[MeasuredLink] = []
    condition: Condition = Condition()


class Renew(Struct, frozen=True, tag=True):
    """A node's certificate nears its end: certify the same key again."""

    signing_request_pem: str


class Renewed(Struct, frozen=True, tag=True):
    certificate_pem: str


class Removed(Struct, frozen=True, tag=True):
    """All machines that are out, though their certificates have not ended: nobody talks to them any more."""

    node_ids: list[NodeId]


class Tick(Struct, frozen=True, tag=True):
    """A sign of life: the controller's answer to a heartbeat; between agent and child, question and answer."""

    vitals: Vitals | None = None
