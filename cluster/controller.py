"""The control plane: it admits machines, deploys a model over them, and carries requests to it."""

import asyncio
import socket
from collections.abc import Collection, Sequence
from pathlib import Path

from cluster.chat_model import ChatModel
from cluster.control.embedding_manager import EmbeddingManager
from cluster.control.next_plan import PlanOptions
from cluster.control.owners import Owners
from cluster.control.residency import RESIDENCE_S
from cluster.control.roster import Roster
from cluster.control.specs import DeploymentSpec
from cluster.control.topology import MachineState, PlanDraft, Topology
from cluster.errors import ModelNotFound
from cluster.events import ClusterEvent
from cluster.fleet import CHAT, EMBEDDINGS, ModelFleet, model_spec
from cluster.models.layer_cost import Precision
from cluster.models.manifest import Progress
from cluster.models.store import read_part
from cluster.net.channel import ChannelServer
from cluster.nodes.absences import Absences
from cluster.plans.plan import Goal
from cluster.trust import renewal
from cluster.trust.addresses import is_reachable
from cluster.trust.authority import Authority
from cluster.trust.identity import Identity, NodeId


class Controller:
    """Runs inside the gateway. `folder` holds the authority, the gateway's identity and pulled models.

    A model is split into at least `stages_min` stages if there are enough machines; the default is the number of
    expected machines. Use: `start`, `load_model`, then `generate`; `stop` at the end.
    """

    def __init__(
        self,
        folder: Path,
        *,
        precision: Precision | None = None,
        slots: int = 32,
        expected_nodes: int = 1,
        stages_min: int | None = None,
        goal: Goal = "throughput",
        owners: Owners | None = None,
        context_tokens: int | None = None,
        discovery: bool = True,
        served_name: str | None = None,
        further: Sequence[DeploymentSpec] = (),
        reserved: Collection[str] = (),
        residence_s: float = RESIDENCE_S,
    ) -> None:
        """Callers ask for the first model by `served_name`; without one by its folder's name or Hugging Face id.

        The first model and the embedding model are pinned, the `further` ones as they say. `reserved` are the names
        that these two will have: a stored deployment with one of them is not restored. A deployment that was loaded
        keeps its memory for `residence_s` seconds. Raise ClusterError if the file of stored deployments is damaged.
        """
        self._folder = folder
        self._authority = Authority.open(folder / "authority")
        self._identity = self._own_identity()
        self._identity.keep_removed(self._authority.machines.removed)
        self._discovery = discovery
        self._roster = Roster(self._authority, self._read_part)
        self._server = ChannelServer("controller", self._identity, self._roster.serve, newcomers=True)
        options = PlanOptions(
            precision, slots, expected_nodes, stages_min or expected_nodes, owners, goal, context_tokens
        )
        self._fleet = ModelFleet(folder, self._identity, self._roster, options, residence_s)
        first = DeploymentSpec(
            served_name or "", "", precision=precision, context_tokens=context_tokens, is_pinned=True
        )
        self._fleet.add(first, CHAT)
        self._fleet.add(DeploymentSpec("", "", "embedding", is_pinned=True), EMBEDDINGS)
        for spec in further:
            self._fleet.add(spec)
        self._fleet.restore(reserved)
        for supervisor in self._fleet.supervisors:
            supervisor.is_resident = True  # All are loaded at the start, as long as they fit.
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> int:
        """Listen for nodes. Return the port. Raise OSError if it is taken."""
        bound = await self._server.open(host, port)
        self._tasks = [
            asyncio.create_task(self._roster.watch(), name="membership watch"),
            asyncio.create_task(self._fleet.residency.run(), name="residency"),
            asyncio.create_task(renewal.keep_fresh(self._identity, self._renew), name="certificate renewal"),
        ]
        for supervisor in self._fleet.supervisors:
            self._fleet.residency.admit(supervisor)
        if self._discovery and is_reachable(host):
            # Import it late: multicast takes 4 MB, and loopback does not need it.
            from cluster.joining.discovery import Announcement

            announcement = Announcement(socket.gethostname(), host, bound, self._authority.fingerprint)
            self._tasks.append(asyncio.create_task(announcement.run(), name="announcement"))
        return bound

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fleet.residency.close()
        await self._fleet.stop()
        await self._server.close()

    @property
    def chat(self) -> ChatModel:
        """The first model that answers prompts: the one of the settings, or the first that was added."""
        first = next(model for model in self.chats if model in self._fleet.firsts)
        return first if first.model_name else next((model for model in self.chats if model.model_name), first)

    @property
    def embeddings(self) -> EmbeddingManager:
        """The first model that embeds."""
        return next(model for model in self.embedders if model in self._fleet.firsts)

    @property
    def models(self) -> "tuple[ChatModel | EmbeddingManager, ...]":
        """All models, whether they serve or not: those that answer prompts first."""
        return (*self.chats, *self.embedders)

    @property
    def chats(self) -> list[ChatModel]:
        """The models that answer prompts."""
        return [model for model in self._fleet.models if isinstance(model, ChatModel)]

    @property
    def embedders(self) -> list[EmbeddingManager]:
        """The models that embed."""
        return [model for model in self._fleet.models if isinstance(model, EmbeddingManager)]

    @property
    def further(self) -> "list[tuple[ChatModel | EmbeddingManager, str]]":
        """The models beside the first ones, each with its reference."""
        firsts = self._fleet.firsts
        return [(model, model_spec(model).reference) for model in self._fleet.models if model not in firsts]

    async def run_model(self, spec: DeploymentSpec, progress: Progress | None = None) -> str:
        """Add a deployment, which is loaded as soon as there is memory. Return its name for callers.

        It returns when the model's files are on this machine and checked; its state tells the rest. It is stored, so
        it survives a restart. Raise NameTaken, ModelError for unusable files, ModelNotFound if it is removed
        meanwhile, or OSError if it cannot be stored.
        """
        return await self._fleet.run_model(spec, progress)

    def set_idle(self, name: str, idle_s: float | None) -> None:
        """Unload a deployment after this many seconds without answers; None: only when memory is needed.

        This is stored if the deployment was added at run time. A pinned one stays. Raise ModelNotFound, or OSError
        if it cannot be stored.
        """
        self._fleet.set_idle(name, idle_s)

    async def stop_model(self, name: str) -> None:
        """Unload a deployment until a request asks for it. Raise ModelNotFound, or NameTaken while it is replaced.

        No new answers begin. Those in progress may take DRAIN_S seconds, then they end as if the cluster was lost.
        """
        await self._fleet.stop_model(name)

    async def remove_model(self, name: str) -> None:
        """Stop a deployment and forget it. One from the settings is there again after a restart.

        Raise ModelNotFound, NameTaken while it is replaced, or OSError if that cannot be stored.
        """
        await self._fleet.remove_model(name)

    async def replace_model(self, old_name: str, spec: DeploymentSpec, progress: Progress | None = None) -> None:
        """Have another model answer under a model's name, without an error for its callers.

        It is loaded beside the old one if memory allows. Otherwise the old one finishes its answers and is unloaded
        first, and requests wait. It returns when the new one serves. If that fails, the old one serves again.

        Raise ModelNotFound, also if the old one is removed meanwhile; NameTaken if it is being replaced already;
        ModelError for unusable files, OSError if it cannot be stored, TimeoutError, and the ClusterError of a failed
        load.
        """
        await self._fleet.replace_model(old_name, spec, progress)

    def chat_of(self, *names: str) -> ChatModel | None:
        """Return the model that answers prompts under one of these names."""
        return next((chat for chat in self.chats if chat.model_name in names), None)

    def machines(self) -> list[MachineState]:
        """Return every admitted machine, by name. Removed machines stay listed until their certificates expire."""
        present = {member.node_id for member in self._roster.membership.present()}
        states = [
            MachineState(node_id, record, node_id in present)
            for node_id, record in self._authority.machines.records.items()
        ]
        return sorted(states, key=lambda state: (state.record.name, state.node_id))

    def machine(self, name: str) -> NodeId:
        """Return the machine with this name or id. Raise MachineUnknown."""
        return self._authority.machines.find(name)

    async def remove_machine(self, name: str) -> NodeId:
        """Remove the machine with this name or id, at once and for good. Raise MachineUnknown or OSError."""
        node_id = self._authority.machines.find(name)
        called = self._authority.machines.records[node_id].name
        self._authority.machines.remove(node_id)
        self._roster.chronicle.note("removed", f"{called} was removed permanently")
        self._identity.keep_removed(self._authority.machines.removed)
        await self._roster.expel(node_id)
        self._server.disconnect({node_id})
        return node_id

    async def drain_machine(self, name: str, *, draining: bool = True) -> NodeId:
        """Move work off the machine, or let it take part again. Raise MachineUnknown or OSError."""
        node_id = self._authority.machines.find(name)
        await self._roster.drain(node_id, draining=draining)
        return node_id

    def name_of(self, node_id: NodeId) -> str:
        """Return the name of a machine in the book."""
        return self._authority.machines.records[node_id].name

    def check_name(self, node_id: NodeId, name: str) -> None:
        """Raise NameTaken if another machine has this name."""
        self._authority.machines.check_name(node_id, name)

    def rename_machine(self, node_id: NodeId, name: str) -> None:
        """Rename a machine of the book. Raise NameTaken or OSError."""
        self._roster.rename(node_id, name)

    async def draft_plan(self, without: Sequence[str] = (), *, including: Sequence[str] = ()) -> PlanDraft:
        """Return the plan without the machines of these names. Nothing is deployed.

        Machines in `including` count as not drained. Raise MachineUnknown; raise ModelNotFound if there is no
        model to plan.
        """
        if self.chat.model is None:
            raise ModelNotFound("no model is loaded that could be planned; name one")
        excluded = frozenset(self._authority.machines.find(name) for name in without)
        included = frozenset(self._authority.machines.find(name) for name in including)
        return await self.chat.manager.draft(self.chat.model, excluded, included)

    def new_token(self, *, aside: bool = False) -> str:
        """Return a join token for one more machine; `aside` admits it drained. Raise PeerRejected or OSError."""
        return self._authority.new_token(aside=aside)

    @property
    def absences(self) -> Absences:
        """Local nodes that do not run, recorded by the process that runs them."""
        return self._roster.absences

    @property
    def fingerprint(self) -> str:
        """The fingerprint by which joining machines know this cluster: it is part of every join token."""
        return self._authority.fingerprint

    def topology(self) -> Topology:
        manager = self.chat.manager
        deployment, (status, reason) = manager.deployment, manager.readiness.status
        members = tuple(self._roster.membership.present(manager.deployment_name))
        # A plan stores the names that its machines had when it was made.
        names = {member.node_id: member.name for member in members}
        return Topology(
            status=status,
            reason=reason,
            epoch=manager.epoch,
            model=self.chat.model_name,
            model_source=self.chat.model_source,
            members=members,
            plan=deployment.plan.naming(names) if deployment else None,
            coordinator=deployment.coordinator.node_id if deployment else None,
            round_trip_ms=deployment.round_trip_ms if deployment else None,
            standbys=tuple(copy.naming(names) for copy in manager.standbys.ready),
            deployments=tuple(state for model in self.models if (state := model.state()) is not None),
            warnings={member.node_id: self._roster.links.warnings(member) for member in members},
            network=self._roster.links.network(),
            conditions={member.node_id: self._roster.links.condition(member) for member in members},
            draining=self._roster.draining,
            absences=dict(self.absences.by_name),
        )

    def events(self) -> list[ClusterEvent]:
        """Return the events since this gateway started, newest first."""
        return self._roster.chronicle.newest()

    def measure_links(self) -> None:
        """Have every link measured again, a few machines at a time. Figures arrive as they are taken."""
        self._roster.links.measure_again()

    async def _renew(self) -> None:
        request_pem = renewal.request_again(self._identity, "gateway")
        renewal.keep(self._identity, self._authority.renew_own(request_pem, "gateway"))

    def _own_identity(self) -> Identity:
        """Issue the gateway's own certificate. Every start issues a new one; it never leaves this machine."""
        return self._authority.issue_identity(self._folder / "gateway", "gateway", "gateway")

    def _read_part(self, sha256: str, offset: int) -> tuple[bytes, int]:
        for model in (each.model for each in self._fleet.supervisors):
            if model and model.manifest.has(sha256):
                return read_part(model.folder, model.manifest, sha256, offset)
        raise ModelNotFound(f"no loaded model has a file with sha256 {sha256}")
