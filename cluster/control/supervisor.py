"""The task that keeps a deployment served: it deploys, watches, and deploys again after a loss or a failure."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog

from cluster import wire
from cluster.control.deployment import Model, now_s
from cluster.control.epochs import PlanVersions
from cluster.control.fault_attribution import FaultAttribution
from cluster.control.readiness import Readiness
from cluster.control.request_gate import RequestGate
from cluster.control.specs import DeploymentKind, DeploymentSpec
from cluster.control.subscription import Subscription
from cluster.control.topology import DeploymentState
from cluster.errors import ClusterError, LinkLost, ModelError, PeerRejected, PlanOutdated
from cluster.events import EventKind
from cluster.models.embedding_model import EmbeddingModel
from cluster.plans.memory_division import Claim
from cluster.plans.plan import Member
from cluster.trust.identity import NodeId

log = structlog.get_logger(__name__)

RETRY_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
AGAIN_S = 0.05
UNLOAD_TIMEOUT_S = 2.0
# A machine ends the processes of a deployment within this time, or kills them.
RELEASE_TIMEOUT_S = 15.0

M = TypeVar("M", Model, EmbeddingModel)
"""The model that is served."""


class Supervisor(ABC, Generic[M]):
    """Owns one deployment. `run` is its task; it handles the nodes' messages one by one."""

    def __init__(
        self,
        folder: Path,
        subscription: Subscription,
        peers: Sequence["Supervisor[Any]"],
        spec: DeploymentSpec,
    ) -> None:
        """`peers` are all deployments that share the machines' memory. It may grow and shrink.

        Callers ask for the model by the name in `spec`; without one by its folder's name or Hugging Face id.
        """
        self.spec = spec
        self._requested_name: str | None = None
        self._peers = peers
        self._subscription = subscription
        self._epochs = PlanVersions(folder / "epochs", subscription.deployment)
        self._fault_attribution = FaultAttribution(
            subscription.membership, chronicle=subscription.chronicle, deployment=subscription.deployment
        )
        self.readiness = Readiness(subscription.absences)
        self.gate = RequestGate(self.readiness)
        # Whether it takes memory, or tries to: whether its task runs.
        self.is_resident = False
        # Since when it should be loaded although no request waits for it, by the clock of `gate`.
        self.wanted_since_s: float | None = None
        # Whether it should replace another one, and has not served yet.
        self.is_on_trial = False
        # Whether the first plan waits for the machines that are expected at the start.
        self.gathers = True
        # How often in a row it could not be deployed, and the last reason.
        self.failures = 0
        self.last_error: Exception | None = None
        self.model: M | None = None
        self.is_reading = False
        # The size of the model's tensors.
        self.size_bytes = 0
        # Whether another deployment has begun to need memory since the last plan.
        self._must_check_share = False

    @abstractmethod
    def claim(self) -> Claim | None:
        """Return the need of memory; None before the model is known."""

    def _claims(self) -> list[Claim]:
        """Return what the deployments that take memory need, by priority."""
        residents = [peer for peer in self._peers if peer.is_resident or peer is self]
        residents.sort(key=lambda peer: (not peer.spec.is_pinned, -peer.spec.priority))
        return [claim for peer in residents if (claim := peer.claim())]

    @property
    @abstractmethod
    def serving(self) -> object | None:
        """What serves now. It is another object after every change."""

    @property
    def model_name(self) -> str | None:
        """The model's name for callers, known before its files are; None without a model."""
        return self.model_source and (self.spec.name or self.model_source)

    @property
    def model_source(self) -> str | None:
        """Its folder's or file's name, or its Hugging Face id."""
        return self.model.name if self.model else self._requested_name

    def want(self) -> None:
        """Have it loaded although no request waits for it."""
        self.wanted_since_s = self.gate.clock()
        self.gate.changed()

    @property
    def is_wanted(self) -> bool:
        return self.wanted_since_s is not None

    @property
    def asked_since_s(self) -> float | None:
        """Since when it should be loaded; None if no request or admin asks for it."""
        return min((at for at in (self.wanted_since_s, self.gate.waits_since_s) if at is not None), default=None)

    @property
    def load_s(self) -> float | None:
        """The seconds that its last load took; before the first one, by the best rate of the others, if known."""
        if self.gate.load_s is not None or self.model is None:
            return self.gate.load_s
        rates = [peer.size_bytes / peer.gate.load_s for peer in self._peers if peer.gate.load_s]
        return self.size_bytes / max(rates) if rates else None

    @property
    def subscription(self) -> Subscription:
        return self._subscription

    @property
    def deployment_name(self) -> str:
        return self._subscription.deployment

    @property
    def epoch(self) -> int:
        return self._epochs.current

    async def load(self, name: str, read: Callable[[], M]) -> M:
        """Read a model on a thread. It is served as soon as there are machines. Raise ModelError."""
        self._requested_name = name
        if self.serving is None:
            await self.readiness.tell("planning", f"reading {name}")
        self.is_reading = True
        try:
            self.model = await asyncio.to_thread(read)
        except ModelError as error:
            if self.serving is None:  # What serves has its own model's files.
                await self.readiness.tell("failed", str(error))
            raise
        finally:
            self.is_reading = False
        self.size_bytes = sum(entry.size_bytes for entry in self.model.manifest.tensors.values())
        if self.is_resident:
            await self.readiness.tell("waiting", "no machine is in the cluster")
            self._tell_peers()
        else:
            await self.readiness.tell("unloaded", "it was not loaded yet")
        return self.model

    def _tell_peers(self) -> None:
        for peer in self._peers:
            if peer is not self:
                peer.look_again()

    def look_again(self) -> None:
        """Have the task check its plan, since another deployment needs memory."""
        if not self.is_resident:
            return  # No task reads the messages.
        self._must_check_share = True
        for member in self._subscription.present()[:1]:  # This wakes the task. It needs no plan without machines.
            with contextlib.suppress(PeerRejected):  # With that many unread messages it is awake.
                self._subscription.answers.put(member, wire.Tick())

    @abstractmethod
    async def _wait_for_work(self) -> M:
        """Wait until a model must be deployed, for the first time or again."""

    @abstractmethod
    async def _deploy(self, model: M) -> None:
        """Deploy the model once. Raise ClusterError, TimeoutError or OSError."""

    @abstractmethod
    async def _note(self, member: Member, message: wire.Message) -> None:
        """Handle a machine's message. Raise PlanOutdated if it makes the work in progress pointless."""

    @abstractmethod
    async def _leave(self) -> None:
        """Forget what serves, and close the connection to it."""

    async def release(self) -> None:
        """Have every machine free the deployment's memory. Its task must not run."""
        await self._leave()
        present = self._subscription.present()
        await asyncio.gather(*(self._unload(member.node_id, wire.ANY_EPOCH) for member in present))
        until_s = now_s() + RELEASE_TIMEOUT_S
        while now_s() < until_s:
            if not self._subscription.membership.holds(self.deployment_name):
                break
            await asyncio.sleep(AGAIN_S)

    async def run(self) -> None:
        """Deploy, watch, and deploy again. Run until cancelled."""
        structlog.contextvars.bind_contextvars(deployment=self.deployment_name)
        while True:
            try:
                model = await self._wait_for_work()
                was_serving = self.serving is not None
                if not was_serving:
                    self.gate.note_loading()
                await self._deploy(model)
                self.failures, self.last_error = 0, None
                if not was_serving:
                    self.gate.note_loaded()
                    # Only now do the others know which memory it takes. A changed plan does not tell them: plans
                    # could change each other for ever.
                    self._tell_peers()
            except (PlanOutdated, LinkLost) as outdated:
                log.info("plan outdated", epoch=self.epoch, reason=str(outdated))
                await asyncio.sleep(AGAIN_S)
            except Exception as error:  # noqa: BLE001 - the edge of this task: no other one deploys again
                pause_s = RETRY_PAUSES_S[min(self.failures, len(RETRY_PAUSES_S) - 1)]
                self.failures, self.last_error = self.failures + 1, error
                await self._fail(error, pause_s)
                self.gate.changed()
                if await self._is_new_within(pause_s):
                    self.failures = 0

    async def _is_new_within(self, pause_s: float) -> bool:
        """Wait before the next try. Tell whether a machine has joined or what serves has changed."""
        serving, until_s = self.serving, now_s() + pause_s
        with contextlib.suppress(TimeoutError):
            while self.serving is serving:
                if isinstance((await self._answer(until_s))[1], wire.Hello):
                    break
            return True
        return False

    async def _next_event(self, timeout_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            await self._answer(None if timeout_s is None else now_s() + timeout_s)

    async def _answer(self, until_s: float | None) -> tuple[NodeId, wire.Message]:
        """Handle and return the next message of a node.

        Raise TimeoutError if there is none by `until_s`; a message that has arrived is always handled completely.
        Raise PlanOutdated as `_note` does.
        """
        async with asyncio.timeout_at(until_s):
            member, message = await self._subscription.answers.get()
        await self._note(member, message)
        return member.node_id, message

    async def _unload(self, node_id: NodeId, epoch: int) -> None:
        """Have a machine free the memory of this deployment, unless it serves `epoch` or a later one."""
        with contextlib.suppress(LinkLost, TimeoutError):
            async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                await self._subscription.send(node_id, wire.Unload(epoch))

    def record(self, kind: EventKind, text: str, epoch: int | None = None) -> None:
        """Record an event of this deployment, with the model's name if there are several."""
        if self.model and sum(peer.model is not None for peer in self._peers) > 1:
            text = f"{self.model_name}: {text}"
        self._subscription.chronicle.note(kind, text, self.epoch if epoch is None else epoch)

    async def _fail(self, error: Exception, again_in_s: float) -> None:
        """Report a failure. A model that does not fit is final, unless a local node is about to come back.

        Anything else is tried again while callers wait.
        """
        foreseen = isinstance(error, ClusterError | TimeoutError | OSError)
        reason = str(error) or "machines did not answer in time"
        trace = not foreseen
        log.error("deployment failed", epoch=self.epoch, reason=reason, again_in_s=again_in_s, exc_info=trace)
        self.record("failed", reason)
        if self.serving is None:
            is_final = isinstance(error, ModelError) and not self._subscription.absences.by_name
            await self.readiness.tell("failed" if is_final else "planning", reason)


def deployment_state(supervisor: Supervisor[Any], name: str, kind: DeploymentKind) -> DeploymentState:
    """Return what the states of all deployments have in common."""
    gate, spec = supervisor.gate, supervisor.spec
    status, reason = supervisor.readiness.status

    def ago_s(at_s: float | None) -> float | None:
        return None if at_s is None else gate.clock() - at_s

    return DeploymentState(
        model=name,
        source=supervisor.model_source or name,
        kind=kind,
        status=status,
        reason=reason,
        epoch=supervisor.epoch,
        priority=spec.priority,
        idle_s=spec.idle_s,
        is_pinned=spec.is_pinned,
        running=gate.running,
        waiting=gate.waiting,
        last_used_s=ago_s(gate.last_used_s),
        loaded_s=ago_s(gate.loaded_s),
        load_s=supervisor.load_s,
    )
