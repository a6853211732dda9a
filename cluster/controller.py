"""The control plane: lets machines in, plans, deploys, and plans anew when a machine is lost or joins."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from cluster import wire
from cluster.authority import Authority
from cluster.channel import Door
from cluster.checkpoint import check_tensors
from cluster.client import HeadClient
from cluster.deployment import Deployment, Model, Rollout
from cluster.errors import ClusterError, ClusterUnavailable, LinkLost, ModelError, ModelNotFound, StageLost
from cluster.generation import GenerateRequest, GenerationEvent, TokenEvent
from cluster.identity import Identity, NodeId
from cluster.manifest import Progress
from cluster.model_card import Precision, read_card
from cluster.plan import Member, Plan, plan_stages
from cluster.roster import Roster
from cluster.store import find_model, load_manifest, model_name, read_part

log = structlog.get_logger(__name__)

DRAIN_TIMEOUT_S = 300.0
READY_PATIENCE_S = 60.0
# Until the news that broke a request has reached the deployment, too.
LOSS_PAUSE_S = 0.2
# How long the first plan waits for machines that are known to be on their way.
GATHER_TIMEOUT_S = 60.0
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

Status = Literal["no_model", "waiting", "planning", "ready", "failed"]


@dataclass(frozen=True, slots=True)
class Topology:
    """What people want to know of the cluster, at one moment."""

    status: Status
    reason: str
    epoch: int
    model: str | None
    members: tuple[Member, ...]
    plan: Plan | None
    head: NodeId | None
    round_trip_ms: float | None


class Controller:
    """Runs inside the gateway. `folder` holds the authority, the gateway's identity and pulled models.

    Use: `start`, `load_model`, then `generate`; `stop` at the end. One task, `_manage`, owns the deployment.
    """

    def __init__(
        self, folder: Path, *, precision: Precision | None = None, slots: int = 32, expected_nodes: int = 1
    ) -> None:
        self._folder = folder
        self._precision = precision
        self._slots = slots
        self._expected_nodes = expected_nodes
        self._authority = Authority.open(folder / "authority")
        self._identity = self._own_identity()
        self._roster = Roster(self._authority, self._read_part)
        self._door = Door(
            "controller", self._identity.server_context(certificate_needed=False), self._roster.serve
        )
        self._model: Model | None = None
        self._asked_for: str | None = None
        self._deployment: Deployment | None = None
        self._considered: frozenset[NodeId] = frozenset()
        self._epoch = _last_epoch(folder)
        self._status: Status = "no_model"
        self._reason = "no model was given"
        self._changed = asyncio.Condition()
        self._client: HeadClient | None = None
        self._opening = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> int:
        """Listen for nodes; returns the port. Raises OSError when it is taken."""
        bound = await self._door.open(host, port)
        self._tasks = [
            asyncio.create_task(self._roster.watch(), name="membership watch"),
            asyncio.create_task(self._manage(), name="deployment manager"),
        ]
        return bound

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client:
            await self._client.close()
        await self._door.close()

    async def load_model(self, reference: str, progress: Progress | None = None) -> Model:
        """Find, hash and check a model; it is deployed as soon as there are machines. Raises ModelError."""
        self._asked_for = model_name(reference)
        await self._tell("planning", f"reading {self._asked_for}")
        try:
            self._model = await self._read_model(reference, progress)
        except ModelError as error:
            await self._tell("failed", str(error))
            raise
        await self._tell("waiting", "no machine is in the cluster")
        return self._model

    async def _read_model(self, reference: str, progress: Progress | None) -> Model:
        folder = await asyncio.to_thread(find_model, reference, self._folder / "models")
        name = model_name(reference)
        manifest = await asyncio.to_thread(load_manifest, folder, name, self._folder / "manifests", progress)
        card = read_card(manifest.config)
        check_tensors(card, manifest)
        return Model(name, folder, manifest, card)

    def new_token(self) -> str:
        """A join token for one more machine."""
        return self._authority.new_token()

    @property
    def model(self) -> Model | None:
        """The model once its files have been read."""
        return self._model

    @property
    def model_name(self) -> str | None:
        """What it is called, known before its files are."""
        return self._model.name if self._model else self._asked_for

    @property
    def status(self) -> tuple[Status, str]:
        return self._status, self._reason

    @property
    def deployment(self) -> Deployment | None:
        """The ring that works just now."""
        return self._deployment

    @property
    def is_ready(self) -> bool:
        return self._status == "ready"

    def topology(self) -> Topology:
        deployment = self._deployment
        return Topology(
            status=self._status,
            reason=self._reason,
            epoch=self._epoch,
            model=self.model_name,
            members=tuple(self._roster.membership.present()),
            plan=deployment.plan if deployment else None,
            head=deployment.head.node_id if deployment else None,
            round_trip_ms=deployment.round_trip_ms if deployment else None,
        )

    async def wait_ready(self, timeout_s: float) -> None:
        """Raises ClusterUnavailable, with the reason, when there is no working ring in time."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._status in ("ready", "failed", "no_model"))
        except TimeoutError:
            raise ClusterUnavailable(f"the cluster is not ready: {self._reason}") from None
        if self._status != "ready":
            raise ClusterUnavailable(self._reason)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent]:
        """Events of one request. Raises GenerationError.

        It waits a while for a ring that is being planned; a ring that is lost before the first token is waited
        for again, since nobody has seen anything of the answer yet.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + READY_PATIENCE_S
        begun = False
        while True:
            await self.wait_ready(max(0.0, deadline_s - loop.time()))
            try:
                client = await self._open_client()
                async with contextlib.aclosing(client.generate(request)) as events:
                    async for event in events:
                        begun = begun or isinstance(event, TokenEvent)
                        yield event
                return
            except (ClusterUnavailable, StageLost):
                if begun or loop.time() >= deadline_s:
                    raise
                await asyncio.sleep(LOSS_PAUSE_S)

    async def _open_client(self) -> HeadClient:
        async with self._opening:
            deployment = self._deployment
            if deployment is None:
                raise ClusterUnavailable(self._reason)
            if self._client and (not self._client.is_open or self._client.head != deployment.head):
                await self._client.close()
                self._client = None
            if self._client is None:
                self._client = await HeadClient.open(deployment.head, self._identity)
            return self._client

    def _own_identity(self) -> Identity:
        """The gateway's own certificate, issued afresh at every start: it never leaves this machine."""
        return self._authority.issue_identity(self._folder / "gateway", "gateway", "gateway")

    def _read_part(self, sha256: str, offset: int) -> tuple[bytes, int]:
        if self._model is None:
            raise ModelNotFound("no model is loaded")
        return read_part(self._model.folder, self._model.manifest, sha256, offset)

    # The deployment manager

    async def _manage(self) -> None:
        """Deploy, watch, deploy anew. Everything the nodes say outside of a rollout arrives here."""
        await self._gather()
        failures = 0
        while True:
            if self._model and self._must_plan():
                try:
                    await self._deploy(self._model)
                    failures = 0
                except (ClusterError, TimeoutError) as error:
                    pause_s = RETRY_PAUSES_S[min(failures, len(RETRY_PAUSES_S) - 1)]
                    failures += 1
                    await self._fail(error, pause_s)
                    await self._wait_for_newcomer(pause_s)
                # Whoever joined meanwhile has said so into the rollout's ear.
                continue
            await self._next_event(None)

    async def _wait_for_newcomer(self, pause_s: float) -> None:
        """Before trying again; a machine that joins meanwhile may change the outcome."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                while not isinstance((await self._roster.answers.get())[1], wire.Hello):
                    pass

    async def _gather(self) -> None:
        """Before the first plan: wait for the model and the machines that are on their way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_TIMEOUT_S):
                while self._model is None or len(self._roster.membership.present()) < self._expected_nodes:
                    await self._next_event(0.5)

    def _must_plan(self) -> bool:
        present = {member.node_id for member in self._roster.membership.present()}
        return bool(present) and (self._deployment is None or not present <= self._considered)

    async def _next_event(self, timeout_s: float | None) -> None:
        """One thing that a node said or that happened to it; a failure in the present ring breaks it."""
        try:
            async with asyncio.timeout(timeout_s):
                member, message = await self._roster.answers.get()
        except TimeoutError:
            return
        deployment = self._deployment
        if not isinstance(message, wire.Failed) or deployment is None:
            return
        takes_part = any(stage.member.node_id == member.node_id for stage in deployment.plan.stages)
        if takes_part and message.epoch in (deployment.epoch, wire.ANY_EPOCH):
            await self._break(f"{member.name}: {message.reason}")

    async def _deploy(self, model: Model) -> None:
        """One epoch from plan to closed ring. Raises ClusterError, TimeoutError."""
        if self._deployment:
            await self._drain(self._deployment)
        members = self._roster.membership.present()
        await self._break("the cluster is being planned")
        self._considered = frozenset(member.node_id for member in members)
        self._epoch += 1
        _save_epoch(self._folder, self._epoch)
        plan = plan_stages(model.name, model.card, members, precision=self._precision, slots=self._slots)
        for reason in (*plan.reasons, *(stage.reason for stage in plan.stages)):
            log.info("plan", epoch=self._epoch, reason=reason)
        for member in members:
            await self._roster.send(member.node_id, wire.Dismiss(self._epoch))
        self._deployment = await Rollout(self._epoch, model, plan, self._roster.send, self._answer).run()
        await self._tell("ready", f"{model.name} over {len(plan.stages)} node(s)")
        log.info("cluster ready", epoch=self._epoch, round_trip_ms=round(self._deployment.round_trip_ms, 1))

    async def _answer(self) -> tuple[NodeId, wire.Message]:
        member, message = await self._roster.answers.get()
        return member.node_id, message

    async def _drain(self, deployment: Deployment) -> None:
        """Let running requests finish before a ring that works is taken apart."""
        with contextlib.suppress(TimeoutError, LinkLost):
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._roster.send(deployment.head.node_id, wire.Drain())
                while self._deployment is deployment:
                    _, message = await self._roster.answers.get()
                    if isinstance(message, wire.Drained | wire.Failed):
                        return

    async def _break(self, reason: str) -> None:
        if self._deployment:
            log.warning("ring broken", epoch=self._deployment.epoch, reason=reason)
        self._deployment = None
        await self._tell("planning", reason)

    async def _fail(self, error: Exception, again_in_s: float) -> None:
        """A model that fits nowhere will not fit in a moment; anything else is tried again while callers wait."""
        self._deployment = None
        reason = str(error) or "machines did not answer in time"
        log.error("deployment failed", epoch=self._epoch, reason=reason, again_in_s=again_in_s)
        await self._tell("failed" if isinstance(error, ModelError) else "planning", reason)

    async def _tell(self, status: Status, reason: str) -> None:
        async with self._changed:
            self._status, self._reason = status, reason
            self._changed.notify_all()


def _last_epoch(folder: Path) -> int:
    file = folder / "epoch"
    return int(file.read_text()) if file.is_file() else 0


def _save_epoch(folder: Path, epoch: int) -> None:
    fresh = folder / "epoch.new"
    fresh.write_text(str(epoch))
    fresh.replace(folder / "epoch")
