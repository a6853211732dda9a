"""The control plane: lets machines in, has a model deployed over them, and carries callers' requests to it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from cluster import wire
from cluster.authority import Authority
from cluster.channel import Door
from cluster.checkpoint import check_tensors
from cluster.client import HeadClient
from cluster.deployment import Deployment, Model
from cluster.errors import ClusterUnavailable, ModelError, ModelNotFound, StageLost
from cluster.generation import GenerateRequest, GenerationEvent, TokenEvent
from cluster.identity import Identity, NodeId
from cluster.manager import DeploymentManager, PlanOptions, Status
from cluster.manifest import Progress
from cluster.model_card import Precision, read_card
from cluster.plan import Member, Plan
from cluster.roster import Roster
from cluster.store import find_model, load_manifest, model_name, read_part

READY_PATIENCE_S = 60.0
# Until the news that broke a request has reached the manager, too.
LOSS_PAUSE_S = 0.2


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

    Use: `start`, `load_model`, then `generate`; `stop` at the end.
    """

    def __init__(
        self, folder: Path, *, precision: Precision | None = None, slots: int = 32, expected_nodes: int = 1
    ) -> None:
        self._folder = folder
        self._authority = Authority.open(folder / "authority")
        self._identity = self._own_identity()
        self._roster = Roster(self._authority, self._read_part)
        self._door = Door(
            "controller", self._identity.server_context(certificate_needed=False), self._roster.serve
        )
        self._manager = DeploymentManager(
            folder, self._roster, PlanOptions(precision, slots, expected_nodes), self._use_head
        )
        self._model: Model | None = None
        self._asked_for: str | None = None
        self._client: HeadClient | None = None
        self._opening = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int) -> int:
        """Listen for nodes; returns the port. Raises OSError when it is taken."""
        bound = await self._door.open(host, port)
        self._tasks = [
            asyncio.create_task(self._roster.watch(), name="membership watch"),
            asyncio.create_task(self._manager.run(), name="deployment manager"),
        ]
        return bound

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._hang_up()
        await self._door.close()

    async def load_model(self, reference: str, progress: Progress | None = None) -> Model:
        """Find, hash and check a model; it is deployed as soon as there are machines. Raises ModelError."""
        self._asked_for = model_name(reference)
        await self._manager.tell("planning", f"reading {self._asked_for}")
        try:
            self._model = await self._read_model(reference, progress)
        except ModelError as error:
            await self._manager.tell("failed", str(error))
            raise
        await self._manager.serve(self._model)
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
        return self._manager.status

    @property
    def deployment(self) -> Deployment | None:
        """The ring that works just now."""
        return self._manager.deployment

    @property
    def is_ready(self) -> bool:
        return self._manager.status[0] == "ready"

    def topology(self) -> Topology:
        deployment, (status, reason) = self._manager.deployment, self._manager.status
        return Topology(
            status=status,
            reason=reason,
            epoch=self._manager.epoch,
            model=self.model_name,
            members=tuple(self._roster.membership.present()),
            plan=deployment.plan if deployment else None,
            head=deployment.head.node_id if deployment else None,
            round_trip_ms=deployment.round_trip_ms if deployment else None,
        )

    async def wait_ready(self, timeout_s: float) -> None:
        """Raises ClusterUnavailable, with the reason, when there is no working ring in time."""
        await self._manager.wait_ready(timeout_s)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent]:
        """Events of one request. Raises GenerationError.

        It waits a while for a ring that is being planned; a ring that is lost before the first token is waited
        for again, since nobody has seen anything of the answer yet.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + READY_PATIENCE_S
        begun, losses, attempts = False, 0, 0
        while True:
            await self.wait_ready(max(0.0, deadline_s - loop.time()))
            try:
                client = await self._open_client()
                # A head that has not noticed yet that we were cut off still knows the earlier try.
                again = replace(request, id=f"{request.id}#{attempts}") if attempts else request
                attempts += 1
                async with contextlib.aclosing(client.generate(again)) as events:
                    async for event in events:
                        begun = begun or isinstance(event, TokenEvent)
                        yield event
                return
            except (ClusterUnavailable, StageLost) as error:
                # A ring that is lost again and again with the same request may be lost by it.
                losses += isinstance(error, StageLost)
                if begun or losses > 1 or loop.time() >= deadline_s:
                    raise
                await asyncio.sleep(LOSS_PAUSE_S)

    async def _open_client(self) -> HeadClient:
        async with self._opening:
            deployment = self._manager.deployment
            if deployment is None:
                raise ClusterUnavailable(self._manager.status[1])
            return await self._connected(deployment.head)

    async def _use_head(self, head: wire.Address | None) -> None:
        """Nobody should wait for another head any more. Raises ClusterUnavailable when it does not answer."""
        if head is None:
            await self._hang_up()
            return
        async with self._opening:
            await self._connected(head)

    async def _connected(self, head: wire.Address) -> HeadClient:
        if self._client is None or not self._client.is_open or self._client.head != head:
            await self._hang_up()
            self._client = await HeadClient.open(head, self._identity)
        return self._client

    async def _hang_up(self) -> None:
        """Close the connection to the head; requests that it still carried end with StageLost."""
        client, self._client = self._client, None
        if client:
            await client.close()

    def _own_identity(self) -> Identity:
        """The gateway's own certificate, issued afresh at every start: it never leaves this machine."""
        return self._authority.issue_identity(self._folder / "gateway", "gateway", "gateway")

    def _read_part(self, sha256: str, offset: int) -> tuple[bytes, int]:
        if self._model is None:
            raise ModelNotFound("no model is loaded")
        return read_part(self._model.folder, self._model.manifest, sha256, offset)
