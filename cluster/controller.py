"""The control plane: it admits machines, deploys a model over them, and carries requests to it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog

from cluster import wire
from cluster.client import ModelClient
from cluster.control.deployment import Deployment, Model
from cluster.control.embedding_manager import EmbeddingManager
from cluster.control.manager import DeploymentManager
from cluster.control.model_text import ModelText
from cluster.control.next_plan import PlanOptions
from cluster.control.owners import Owners
from cluster.control.readiness import Status
from cluster.control.roster import Roster
from cluster.control.topology import MachineState, PlanDraft, Topology
from cluster.errors import ClusterUnavailable, ModelNotFound, ProcessLost
from cluster.events import ClusterEvent
from cluster.generation import ChatPrompt, GenerateRequest, GenerationEvent
from cluster.models.chat_format import ChatFormat
from cluster.models.checkpoint import check_tensors
from cluster.models.manifest import Progress
from cluster.models.model_card import Precision, read_card
from cluster.models.store import find_model, load_manifest, model_name, read_part
from cluster.net.channel import ChannelServer
from cluster.nodes.absences import Absences
from cluster.plans.forecast import Prediction
from cluster.plans.needs import StageMemory, stage_memory
from cluster.plans.plan import Goal
from cluster.resumption import ResumedRequest
from cluster.trust import renewal
from cluster.trust.addresses import is_reachable
from cluster.trust.authority import Authority
from cluster.trust.identity import Identity, NodeId

log = structlog.get_logger(__name__)

READY_PATIENCE_S = 60.0
# A request that has begun waits this long for another pipeline, as in the coordinator
# (request_table.PIPELINE_PATIENCE_S).
RESUME_PATIENCE_S = 120.0
# The pause after a request has lost its pipeline, until the manager has noticed the loss, too.
LOSS_PAUSE_S = 0.05
LOSS_PAUSE_MAX_S = 1.0

CHAT, EMBEDDINGS = "chat", "embeddings"
"""The names of the deployments."""


Step = Literal["pulled", "hashed"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The progress of reading a model's files, out of the total that is known so far."""

    step: Step
    done_bytes: int
    total_bytes: int


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
    ) -> None:
        """Callers ask for the model by `served_name`; without one by its folder's name or Hugging Face id."""
        self._folder = folder
        self._served_name = served_name
        self._context_requested = context_tokens
        self._authority = Authority.open(folder / "authority")
        self._identity = self._own_identity()
        self._identity.keep_removed(self._authority.machines.removed)
        self._discovery = discovery
        self._roster = Roster(self._authority, self._read_part)
        self._server = ChannelServer("controller", self._identity, self._roster.serve, newcomers=True)
        self._manager = DeploymentManager(
            folder,
            self._roster.subscribe(CHAT),
            PlanOptions(
                precision, slots, expected_nodes, stages_min or expected_nodes, owners, goal, context_tokens
            ),
            self._use_coordinator,
        )
        # Embeds texts, with or without a pipeline.
        self.embeddings = EmbeddingManager(
            folder, self._roster.subscribe(EMBEDDINGS), self._identity, self._stage_memory_now, owners
        )
        self._model: Model | None = None
        self._text: ModelText | None = None
        self._requested_name: str | None = None
        self._reading: Reading | None = None
        self._client: ModelClient | None = None
        self._opening = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> int:
        """Listen for nodes. Return the port. Raise OSError if it is taken."""
        bound = await self._server.open(host, port)
        self._tasks = [
            asyncio.create_task(self._roster.watch(), name="membership watch"),
            asyncio.create_task(self._manager.run(), name="deployment manager"),
            asyncio.create_task(self.embeddings.run(), name="embedding manager"),
            asyncio.create_task(renewal.keep_fresh(self._identity, self._renew), name="certificate renewal"),
        ]
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
        await self._hang_up()
        await self.embeddings.stop()
        await self._server.close()

    async def load_model(self, reference: str, progress: Progress | None = None) -> Model:
        """Find, hash and check a model, which is deployed as soon as there are machines. Raise ModelError."""
        self._requested_name = model_name(reference)
        try:
            self._model = await self._manager.load(
                self._requested_name, lambda: self._read_model(reference, progress)
            )
        finally:
            self._reading = None
        return self._model

    def _watched(self, step: Step, progress: Progress | None = None) -> Progress:
        def tell(done_bytes: int, total_bytes: int) -> None:
            # The reading thread calls this. It only makes one assignment, so it needs no lock.
            self._reading = Reading(step, done_bytes, total_bytes)
            if progress:
                progress(done_bytes, total_bytes)

        return tell

    def _read_model(self, reference: str, progress: Progress | None) -> Model:
        """Pull, hash and check a model, on a thread. Raise ModelError."""
        name = model_name(reference)
        folder = find_model(reference, self._folder / "models", progress=self._watched("pulled"))
        hashed = self._watched("hashed", progress)
        manifest = load_manifest(folder, name, self._folder / "manifests", hashed)
        card = read_card(manifest.config)
        check_tensors(card, manifest)
        self._text = ModelText.open(folder)
        return Model(name, folder, manifest, card)

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
        if self._model is None:
            raise ModelNotFound("no model is loaded that could be planned; name one")
        excluded = frozenset(self._authority.machines.find(name) for name in without)
        included = frozenset(self._authority.machines.find(name) for name in including)
        return await self._manager.draft(self._model, excluded, included)

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

    @property
    def model(self) -> Model | None:
        """The model once its files have been read."""
        return self._model

    @property
    def model_name(self) -> str | None:
        """The model's name for callers, known before its files are; None without a model."""
        return self.model_source and (self._served_name or self.model_source)

    @property
    def model_source(self) -> str | None:
        """Its folder's or file's name, or its Hugging Face id."""
        return self._model.name if self._model else self._requested_name

    @property
    def reading(self) -> Reading | None:
        """The progress of a model that is being pulled or hashed."""
        return self._reading

    @property
    def context_tokens(self) -> int | None:
        """The longest context (prompt plus answer) in tokens: of the pipeline, or of the model without one."""
        if deployment := self._manager.deployment:
            return deployment.plan.context_tokens
        if self._model is None:
            return None
        longest = self._model.card.context_tokens
        return min(longest, self._context_requested or longest)

    @property
    def chat_format(self) -> ChatFormat:
        """How the model writes thoughts and tool calls."""
        return self._text.format if self._text else ChatFormat()

    @property
    def unconstrained(self) -> str:
        """Why answers cannot be constrained to a schema, in words.

        Empty if they can, or if that is not known yet.
        """
        return self._manager.deployment.unconstrained if self._manager.deployment else ""

    @property
    def predicted(self) -> Prediction | None:
        """The expected speed of the current pipeline."""
        return self._manager.deployment.plan.predicted if self._manager.deployment else None

    async def count_tokens(self, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> int:
        """Return the tokens of a chat's prompt, by the model's own template and tokenizer.

        Raise RequestInvalid, ContextLengthExceeded or ModelInvalid, and ModelNotFound before there is a model.
        """
        if self._text is None:
            raise ModelNotFound("no model is loaded that could count tokens")
        return await self._text.count(ChatPrompt(messages, list(tools)))

    @property
    def status(self) -> tuple[Status, str]:
        return self._manager.readiness.status

    @property
    def deployment(self) -> Deployment | None:
        """The pipeline that works now."""
        return self._manager.deployment

    @property
    def is_ready(self) -> bool:
        return self._manager.readiness.status[0] == "ready"

    def topology(self) -> Topology:
        deployment, (status, reason) = self._manager.deployment, self._manager.readiness.status
        members = tuple(self._roster.membership.present(CHAT))
        # A plan stores the names that its machines had when it was made.
        names = {member.node_id: member.name for member in members}
        return Topology(
            status=status,
            reason=reason,
            epoch=self._manager.epoch,
            model=self.model_name,
            model_source=self.model_source,
            members=members,
            plan=deployment.plan.naming(names) if deployment else None,
            coordinator=deployment.coordinator.node_id if deployment else None,
            round_trip_ms=deployment.round_trip_ms if deployment else None,
            standbys=tuple(copy.naming(names) for copy in self._manager.standbys.ready),
            embedding_model=self.embeddings.model_name,
            embedder=embedder.node_id if (embedder := self.embeddings.machine) else None,
            embedder_status=self.embeddings.readiness.status,
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

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait for a working pipeline. Raise ClusterUnavailable, with the reason, if there is none in time."""
        await self._manager.readiness.wait(timeout_s)

    async def generate(
        self, request: GenerateRequest, patience_s: float | None = None
    ) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of one request. Raise GenerationError.

        Coordinators and their pipelines may be lost meanwhile. Sent text stays, and the next coordinator continues
        after it. A request waits `patience_s` (READY_PATIENCE_S by default) for its first pipeline, and
        RESUME_PATIENCE_S for another one after each loss.
        """
        loop = asyncio.get_running_loop()
        resumed = ResumedRequest(request)
        until_s = loop.time() + (READY_PATIENCE_S if patience_s is None else patience_s)
        pause_s = LOSS_PAUSE_S
        while True:
            await self._wait_for_pipeline(resumed, until_s)
            try:
                client = await self._open_client()
                async with contextlib.aclosing(client.generate(resumed.next_try())) as events:
                    async for received in events:
                        if event := resumed.pass_on(received):
                            yield event
                return
            except (ClusterUnavailable, ProcessLost) as error:
                is_lost = isinstance(error, ProcessLost)
                if resumed.note_loss(counts=is_lost) or is_lost:
                    until_s = loop.time() + RESUME_PATIENCE_S
                if loop.time() >= until_s or resumed.is_hopeless:
                    raise
                pause_s = LOSS_PAUSE_S if is_lost else min(2 * pause_s, LOSS_PAUSE_MAX_S)
                log.info("request continues", request_id=request.id, reason=error.message, begun=resumed.is_begun)
                await asyncio.sleep(pause_s)

    async def _wait_for_pipeline(self, resumed: ResumedRequest, until_s: float) -> None:
        """Wait for a pipeline. Raise ClusterUnavailable.

        A begun answer keeps waiting even if the cluster rejects new requests.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self.wait_ready(max(0.0, until_s - loop.time()))
            except ClusterUnavailable:
                if not resumed.is_begun or loop.time() >= until_s:
                    raise
                await asyncio.sleep(LOSS_PAUSE_S)
            else:
                return

    async def _open_client(self) -> ModelClient:
        async with self._opening:
            deployment = self._manager.deployment
            if deployment is None:
                raise ClusterUnavailable(self._manager.readiness.status[1])
            return await self._connected(deployment.coordinator)

    async def _use_coordinator(self, coordinator: wire.Address | None) -> None:
        """Connect callers to this coordinator; None disconnects them. Raise ClusterUnavailable if it is silent."""
        if coordinator is None:
            await self._hang_up()
            return
        async with self._opening:
            await self._connected(coordinator)

    async def _connected(self, coordinator: wire.Address) -> ModelClient:
        if self._client is None or not self._client.is_open or self._client.address != coordinator:
            await self._hang_up()
            self._client = await ModelClient.open(coordinator, self._identity)
        return self._client

    async def _hang_up(self) -> None:
        """Close the connection to the coordinator. Its requests go on with the next coordinator."""
        client, self._client = self._client, None
        if client:
            await client.close()

    async def _renew(self) -> None:
        request_pem = renewal.request_again(self._identity, "gateway")
        renewal.keep(self._identity, self._authority.renew_own(request_pem, "gateway"))

    def _own_identity(self) -> Identity:
        """Issue the gateway's own certificate. Every start issues a new one; it never leaves this machine."""
        return self._authority.issue_identity(self._folder / "gateway", "gateway", "gateway")

    def _stage_memory_now(self) -> dict[NodeId, StageMemory]:
        deployment = self._manager.deployment
        return stage_memory(deployment.plan, self._model.card) if deployment and self._model else {}

    def _read_part(self, sha256: str, offset: int) -> tuple[bytes, int]:
        for model in (self._model, self.embeddings.model):
            if model and model.manifest.has(sha256):
                return read_part(model.folder, model.manifest, sha256, offset)
        raise ModelNotFound(f"no loaded model has a file with sha256 {sha256}")
