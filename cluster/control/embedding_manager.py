"""The task that keeps an embedding model served: on one machine, and on another if that one is lost."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.client import ModelClient
from cluster.control.deployment import now_s
from cluster.control.embedder_place import place_embedder
from cluster.control.owners import Owners
from cluster.control.request_gate import AdmittedRequest
from cluster.control.specs import DeploymentSpec
from cluster.control.subscription import Subscription
from cluster.control.supervisor import Supervisor, deployment_state
from cluster.control.topology import DeploymentState
from cluster.embedding import Embeddings, EmbedRequest
from cluster.errors import (
    ClusterUnavailable,
    LinkError,
    NodeFailed,
    ProcessLost,
)
from cluster.models.embedding_model import EmbeddingModel, read_embedding_model
from cluster.models.manifest import Progress
from cluster.models.store import model_name
from cluster.net.channel import SLOWEST_BYTES_PER_S
from cluster.plans.memory_division import Claim, memory_of_others
from cluster.plans.needs import StageMemory
from cluster.plans.plan import Member
from cluster.trust.identity import Identity, NodeId

log = structlog.get_logger(__name__)

READY_PATIENCE_S = 60.0
# A request is sent again at most this often if its machine is lost.
RETRIES_MAX = 1
# The time to load. The slowest reasonable link adds the time to fetch.
LOAD_TIMEOUT_S = 900.0
_LOOK_AGAIN_S = 0.5

_ANY = wire.ANY_EPOCH
_LOST = "the connection to the embedder was lost"


@dataclass(frozen=True, slots=True)
class _Serving:
    member: Member
    epoch: int
    client: ModelClient


class EmbeddingManager(Supervisor[EmbeddingModel]):
    """Owns the embedder of one model."""

    def __init__(
        self,
        folder: Path,
        subscription: Subscription,
        identity: Identity,
        peers: Sequence[Supervisor[Any]],
        owners: Owners | None,
        spec: DeploymentSpec,
    ) -> None:
        super().__init__(folder, subscription, peers, spec)
        self._folder = folder
        self._identity = identity
        self._owners = owners
        self._serving: _Serving | None = None
        self._loading: NodeId | None = None

    @property
    def serving(self) -> _Serving | None:
        return self._serving

    def claim(self) -> Claim | None:
        if (model := self.model) is None:
            return None
        needed_bytes = model.needed_bytes

        def least(members: Sequence[Member]) -> Mapping[NodeId, int]:
            placement = place_embedder(model.name, needed_bytes, members, {}, owners=self._allowed())
            return {placement.member.node_id: needed_bytes}

        held = StageMemory(needed_bytes, needed_bytes)
        serving = {self._serving.member.node_id: held} if self._serving else None
        return Claim(self._subscription.deployment, self.model_name or model.name, least, serving, has_cache=False)

    def _allowed(self) -> frozenset[NodeId] | None:
        """Return the only machines that may see texts. Raise MachineUnknown if all their names are unknown."""
        return self._owners.pin(self._subscription.machines)[0].owners if self._owners else None

    def state(self) -> DeploymentState | None:
        """Return the state for display; None without a model."""
        if not (name := self.model_name):
            return None
        machines = (self._serving.member.node_id,) if self._serving else ()
        return replace_fields(deployment_state(self, name, "embedding"), precision="fp32", machines=machines)

    @property
    def machine(self) -> Member | None:
        """The machine that embeds now."""
        return self._serving.member if self._serving else None

    async def load_model(self, reference: str, progress: Progress | None = None) -> EmbeddingModel:
        """Find and hash a model, which is served as soon as there is a machine. Raise ModelError."""
        read = partial(read_embedding_model, reference, self._folder, progress)
        return await self.load(model_name(reference), read)

    async def embed(self, request: EmbedRequest, patience_s: float | None = None) -> Embeddings:
        """Answer a request. Repeat it up to RETRIES_MAX times if its machine is lost. Raise GenerationError.

        A request waits `patience_s` seconds for each machine, READY_PATIENCE_S by default. Raise
        ClusterUnavailable if none serves by then.
        """
        patience_s = READY_PATIENCE_S if patience_s is None else patience_s
        if (turn := await self.gate.admit(patience_s)) is None:
            successor: EmbeddingManager = self.gate.successor
            return await successor.embed(request, patience_s)
        try:
            return await self._embed(request, turn, patience_s)
        finally:
            self.gate.finish(turn)

    async def _embed(self, request: EmbedRequest, turn: AdmittedRequest, patience_s: float) -> Embeddings:
        for tries in range(RETRIES_MAX + 1):
            await self.readiness.wait_or(patience_s, lambda: turn.is_over, is_admitted=True)
            if (serving := self._serving) is None:
                raise ClusterUnavailable(self.readiness.status[1])
            try:
                # Each try has a new id, because the embedder may still hold an earlier try.
                return await serving.client.embed(replace(request, id=f"{request.id}#{tries}"))
            except (ClusterUnavailable, ProcessLost) as error:  # It is lost, or has another model now.
                # Later requests wait for the next embedder, even if the task has not noticed the loss yet.
                await self._drop(serving, _LOST)
                if tries == RETRIES_MAX or turn.is_over:
                    raise
                log.info("request continues", request_id=request.id, reason=error.message)
        raise AssertionError("the last try returns or raises")

    async def _leave(self) -> None:
        self._loading = None
        await self.stop()

    async def stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving:
            await serving.client.close()

    async def _wait_for_work(self) -> EmbeddingModel:
        """Wait until a machine is there and a model needs one: it is not served, or its machine is drained."""
        while True:
            if (serving := self._serving) and not serving.client.is_open:
                await self._drop(serving, _LOST)
            model, present, draining = self.model, self._subscription.available(), self._subscription.draining
            if model and present and (self._serving is None or self._serving.member.node_id in draining):
                return model
            await self._next_event(_LOOK_AGAIN_S)  # No node reports that a model was given.

    async def _deploy(self, model: EmbeddingModel) -> None:
        """Have a machine load the model, while the previous one still serves. Raise ClusterError."""
        claims = self._claims()
        # The memory that other deployments hold counts here, since what they plan is subtracted.
        members = self._subscription.available(*(claim.deployment for claim in claims))
        quarantine = self._fault_attribution.quarantine
        resting = {member.node_id for member in members if quarantine.quarantine(member.node_id)}
        # On a thread, since it may plan the models with priority.
        held = await asyncio.to_thread(memory_of_others, self._subscription.deployment, claims, members)
        placement = place_embedder(model.name, model.needed_bytes, members, held, resting, self._allowed())
        node_id, epoch = placement.member.node_id, self._epochs.advance()
        log.info("embedder placed", epoch=epoch, reason=placement.reason)
        if self._serving is None:
            await self.readiness.tell("planning", f"{self.model_name} is being loaded by {placement.member.name}")
        order = wire.AssignEmbedder(epoch, model.manifest, str(model.folder), model.recipe)
        size_bytes = sum(entry.size_bytes for entry in model.manifest.tensors.values())
        patience_s = LOAD_TIMEOUT_S + size_bytes / SLOWEST_BYTES_PER_S
        self._loading = node_id
        try:
            await self._subscription.send(node_id, order)
            ready = await self._loaded(node_id, epoch, model, now_s() + patience_s)
            address = wire.Address(node_id, ready.host, ready.client_port)
            client = await ModelClient.open(address, self._identity, self.deployment_name, "embedder")
        except (NodeFailed, LinkError, ClusterUnavailable, TimeoutError):
            quarantine.add(node_id)
            raise
        finally:
            self._loading = None
        before = self._serving
        self._serving = _Serving(placement.member, epoch, client)
        quarantine.end(node_id)
        await self.readiness.tell("ready", f"{self.model_name} on {placement.member.name}")
        log.info("embedder ready", epoch=epoch, node=placement.member.name)
        if before:
            await before.client.close()
        # Earlier embedders, however they were lost, must free their memory.
        others = [member for member in self._subscription.present() if member.node_id != node_id]
        await asyncio.gather(*(self._unload(member.node_id, epoch) for member in others))

    async def _loaded(self, node_id: NodeId, epoch: int, model: EmbeddingModel, until_s: float) -> wire.Ready:
        """Wait until the machine has loaded the model. Raise NodeFailed or TimeoutError."""
        while True:
            sender, message = await self._answer(until_s)
            if sender != node_id:
                continue
            match message:
                case wire.Ready() if message.epoch == epoch:
                    if message.terms.digest != model.manifest.digest:
                        raise NodeFailed(node_id, "it has loaded another embedding model")
                    return message
                case wire.Failed(failed, _, reason) if failed in (epoch, _ANY):
                    raise NodeFailed(node_id, reason)
                case _:
                    pass

    async def _note(self, member: Member, message: wire.Message) -> None:
        serving = self._serving
        is_ours = serving is not None and serving.member.node_id == member.node_id
        if isinstance(message, wire.Hello) and not is_ours and member.node_id != self._loading:
            # The machine may run an embedder from before its connection was lost, or of an earlier gateway.
            await self._unload(member.node_id, self.epoch + 1)
        elif serving and is_ours and isinstance(message, wire.Failed) and message.epoch in (serving.epoch, _ANY):
            await self._drop(serving, message.reason)

    async def _drop(self, serving: _Serving, reason: str) -> None:
        """Note once that an embedder is lost, and whose machine must pause."""
        if self._serving is serving:
            log.warning("embedder lost", node=serving.member.name, epoch=serving.epoch, reason=reason)
            self._serving = None
            self._fault_attribution.quarantine.add(serving.member.node_id)
            try:
                await self.readiness.tell("planning", reason)
            finally:
                await serving.client.close()
