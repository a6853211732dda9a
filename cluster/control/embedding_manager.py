"""The task that keeps an embedding model served: on one machine, and on another if that one is lost."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
from msgspec.structs import replace

from cluster import wire
from cluster.client import ModelClient
from cluster.control.embedder_place import place_embedder
from cluster.control.epochs import PlanVersions
from cluster.control.owners import Owners
from cluster.control.quarantine import Quarantine
from cluster.control.readiness import Readiness
from cluster.control.roster import Roster
from cluster.embedding import Embeddings, EmbedRequest
from cluster.errors import (
    ClusterError,
    ClusterUnavailable,
    LinkError,
    ModelError,
    NodeFailed,
    ProcessLost,
)
from cluster.models.embedding_model import EmbeddingModel, read_embedding_model
from cluster.models.manifest import Progress
from cluster.models.store import model_name
from cluster.net.channel import SLOWEST_BYTES_PER_S
from cluster.plans.needs import StageMemory
from cluster.plans.plan import Member
from cluster.trust.identity import Identity, NodeId

log = structlog.get_logger(__name__)

READY_PATIENCE_S = 60.0
# A request is sent again at most this often if its machine is lost.
RETRIES_MAX = 1
RETRY_PAUSES_S = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
# The time to load. The slowest reasonable link adds the time to fetch.
LOAD_TIMEOUT_S = 900.0
DISMISS_TIMEOUT_S = 2.0
_LOOK_AGAIN_S = 0.5

_ANY = wire.ANY_EPOCH
_LOST = "the connection to the embedder was lost"

StageMemoryNow = Callable[[], Mapping[NodeId, StageMemory]]
"""The part of each machine's usable memory that the cluster's own model takes."""


@dataclass(frozen=True, slots=True)
class _Serving:
    member: Member
    epoch: int
    client: ModelClient


class EmbeddingManager:
    """Serves one embedding model. Its task `run` handles the nodes' messages about embedders, one by one."""

    def __init__(
        self,
        folder: Path,
        roster: Roster,
        identity: Identity,
        stage_memory_now: StageMemoryNow,
        owners: Owners | None = None,
    ) -> None:
        self._folder = folder
        self._roster = roster
        self._identity = identity
        self._stage_memory_now = stage_memory_now
        self._owners = owners
        self._epochs = PlanVersions(folder, "embedder-epoch")
        self._quarantine = Quarantine()
        self._answers = roster.embedder_answers
        self._serving: _Serving | None = None
        self._loading: NodeId | None = None
        self._requested_name: str | None = None
        self.readiness = Readiness(roster.absences)
        self.model: EmbeddingModel | None = None

    @property
    def model_name(self) -> str | None:
        """The model's name, known before its files are."""
        return self.model.name if self.model else self._requested_name

    @property
    def machine(self) -> Member | None:
        """The machine that embeds now."""
        return self._serving.member if self._serving else None

    async def load_model(self, reference: str, progress: Progress | None = None) -> EmbeddingModel:
        """Find and hash a model, which is served as soon as there is a machine. Raise ModelError."""
        self._requested_name = model_name(reference)
        await self.readiness.tell("planning", f"reading {self._requested_name}")
        try:
            model = await asyncio.to_thread(read_embedding_model, reference, self._folder, progress)
        except ModelError as error:
            await self.readiness.tell("failed", str(error))
            raise
        await self.readiness.tell("waiting", "no machine is in the cluster")
        self.model = model
        return model

    async def embed(self, request: EmbedRequest, patience_s: float | None = None) -> Embeddings:
        """Answer a request. Repeat it up to RETRIES_MAX times if its machine is lost. Raise GenerationError.

        A request waits `patience_s` seconds for each machine, READY_PATIENCE_S by default. Raise
        ClusterUnavailable if none serves by then.
        """
        for tries in range(RETRIES_MAX + 1):
            await self.readiness.wait(READY_PATIENCE_S if patience_s is None else patience_s)
            if (serving := self._serving) is None:
                raise ClusterUnavailable(self.readiness.status[1])
            try:
                # Each try has a new id, because the embedder may still hold an earlier try.
                return await serving.client.embed(replace(request, id=f"{request.id}#{tries}"))
            except ProcessLost as error:
                # Later requests wait for the next embedder, even if the task has not noticed the loss yet.
                await self._drop(serving, _LOST)
                if tries == RETRIES_MAX:
                    raise
                log.info("request continues", request_id=request.id, reason=error.message)
        raise AssertionError("the last try returns or raises")

    async def stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving:
            await serving.client.close()

    async def run(self) -> None:
        """Serve the model, watch it, and move it if its machine is lost. Run until cancelled."""
        failures = 0
        while True:
            try:
                model = await self._wait_for_work()
                await self._serve(model)
                failures = 0
            except Exception as error:  # noqa: BLE001 - the edge of this task: no other one retries
                pause_s = RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
                failures += 1
                await self._fail(error, pause_s)
                await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        """Wait before the next try. A machine that joins meanwhile ends the wait."""
        until_s = asyncio.get_running_loop().time() + pause_s
        with contextlib.suppress(TimeoutError):
            while not isinstance((await self._answer(until_s))[1], wire.Hello):
                pass

    async def _wait_for_work(self) -> EmbeddingModel:
        """Wait until a machine is there and a model needs one: it is not served, or its machine is drained."""
        loop = asyncio.get_running_loop()
        while True:
            if (serving := self._serving) and not serving.client.is_open:
                await self._drop(serving, _LOST)
            model, present, draining = self.model, self._roster.available(), self._roster.draining
            if model and present and (self._serving is None or self._serving.member.node_id in draining):
                return model
            with contextlib.suppress(TimeoutError):  # No node reports that a model was given, so look again.
                await self._answer(loop.time() + _LOOK_AGAIN_S)

    async def _serve(self, model: EmbeddingModel) -> None:
        """Have a machine load the model, while the previous one still serves. Raise ClusterError."""
        members = self._roster.available()
        resting = {member.node_id for member in members if self._quarantine.quarantine(member.node_id)}
        owners = self._owners.pin(self._roster.machines)[0].owners if self._owners else None
        placement = place_embedder(
            model.name, model.needed_bytes, members, self._stage_memory_now(), resting, owners
        )
        node_id, epoch = placement.member.node_id, self._epochs.advance()
        log.info("embedder placed", epoch=epoch, reason=placement.reason)
        if self._serving is None:
            await self.readiness.tell("planning", f"{model.name} is being loaded by {placement.member.name}")
        order = wire.AssignEmbedder(epoch, model.manifest, str(model.folder), model.recipe)
        size_bytes = sum(entry.size_bytes for entry in model.manifest.tensors.values())
        patience_s = LOAD_TIMEOUT_S + size_bytes / SLOWEST_BYTES_PER_S
        self._loading = node_id
        try:
            await self._roster.send(node_id, order)
            ready = await self._loaded(node_id, epoch, model, asyncio.get_running_loop().time() + patience_s)
            address = wire.Address(node_id, ready.host, ready.client_port)
            client = await ModelClient.open(address, self._identity, "embedder")
        except (NodeFailed, LinkError, ClusterUnavailable, TimeoutError):
            self._quarantine.add(node_id)
            raise
        finally:
            self._loading = None
        before = self._serving
        self._serving = _Serving(placement.member, epoch, client)
        self._quarantine.end(node_id)
        await self.readiness.tell("ready", f"{model.name} on {placement.member.name}")
        log.info("embedder ready", epoch=epoch, node=placement.member.name)
        if before:
            await before.client.close()
        # Earlier embedders, however they were lost, must free their memory.
        others = [member for member in self._roster.membership.present() if member.node_id != node_id]
        await asyncio.gather(*(self._dismiss(member.node_id) for member in others))

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

    async def _answer(self, until_s: float) -> tuple[NodeId, wire.Message]:
        """Handle and return the next message of a node. Raise TimeoutError if there is none by then."""
        async with asyncio.timeout_at(until_s):
            member, message = await self._answers.get()
        serving = self._serving
        is_ours = serving is not None and serving.member.node_id == member.node_id
        if isinstance(message, wire.Hello) and not is_ours and member.node_id != self._loading:
            # The machine may run an embedder from before its connection was lost, or of an earlier gateway.
            await self._dismiss(member.node_id)
        elif serving and is_ours and isinstance(message, wire.Failed) and message.epoch in (serving.epoch, _ANY):
            await self._drop(serving, message.reason)
        return member.node_id, message

    async def _drop(self, serving: _Serving, reason: str) -> None:
        """Note once that an embedder is lost, and whose machine must pause."""
        if self._serving is serving:
            log.warning("embedder lost", node=serving.member.name, epoch=serving.epoch, reason=reason)
            self._serving = None
            self._quarantine.add(serving.member.node_id)
            try:
                await self.readiness.tell("planning", reason)
            finally:
                await serving.client.close()

    async def _dismiss(self, node_id: NodeId) -> None:
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(DISMISS_TIMEOUT_S):
                await self._roster.send(node_id, wire.Dismiss(self._epochs.current + 1, "embedder"))

    async def _fail(self, error: Exception, again_in_s: float) -> None:
        foreseen = isinstance(error, ClusterError | TimeoutError | OSError)
        reason = str(error) or "the machine did not answer in time"
        log.error("embedder not started", reason=reason, again_in_s=again_in_s, exc_info=not foreseen)
        if self._serving is None:
            await self.readiness.tell("failed" if isinstance(error, ModelError) else "planning", reason)
