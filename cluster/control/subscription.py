"""One deployment's part of the roster: its orders to machines, their answers, and the machines it may use."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from cluster import wire
from cluster.control.answers import Answers
from cluster.control.links import LinkSurvey
from cluster.control.membership import Membership
from cluster.events import Chronicle
from cluster.nodes.absences import Absences
from cluster.plans.plan import Member
from cluster.trust.identity import NodeId
from cluster.trust.machines import MachineBook

SendMessage = Callable[[NodeId, wire.Message], Awaitable[None]]
"""Sends a message to a node. Raises LinkLost."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a deployment's task knows of the machines.

    In `answers` wait the machines' messages about this deployment, and the news of every machine that joins, is
    lost or should be looked at again.
    """

    deployment: str
    machines: MachineBook
    membership: Membership
    links: LinkSurvey
    chronicle: Chronicle
    absences: Absences
    send_message: SendMessage
    answers: Answers = field(default_factory=Answers)

    async def send(self, node_id: NodeId, order: wire.DeploymentMessage) -> None:
        """Send an order about this deployment to a node. Raise LinkLost if it is not connected."""
        named: wire.Message = replace(order, deployment=self.deployment)  # type: ignore[assignment]
        await self.send_message(node_id, named)

    @property
    def draining(self) -> frozenset[NodeId]:
        """Machines that no plan may use."""
        return self.machines.draining

    def present(self) -> list[Member]:
        """Return the machines with the memory that this deployment may use of each."""
        return self.membership.present(self.deployment)

    def available(self, *sharing: str) -> list[Member]:
        """Return the present machines that plans may use, with the memory that the deployments `sharing` it hold."""
        present = self.membership.present(self.deployment, *sharing)
        return [member for member in present if member.node_id not in self.draining]

    def is_well(self, node_id: NodeId) -> bool:
        """Tell whether a machine can serve this deployment."""
        return self.membership.is_well(self.deployment, node_id)

    def vitals(self, node_id: NodeId, role: str) -> wire.Vitals | None:
        """Return the progress of one of this deployment's processes."""
        return self.membership.vitals(self.deployment, node_id, role)
