"""Fault attribution for a broken pipeline: its machines' reports, and which of them must pause."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog

from cluster import wire
from cluster.control.deployment import CAUSE_PATIENCE_S, Deployment, is_clear, suspicion
from cluster.control.membership import Membership
from cluster.control.quarantine import Quarantine
from cluster.control.recovery import stuck_at
from cluster.errors import NodeFailed
from cluster.events import Chronicle
from cluster.trust.identity import NodeId

log = structlog.get_logger(__name__)

# A pipeline that has served this long was healthy: no machine breaks it repeatedly.
SETTLED_S = 60.0


@dataclass(slots=True)
class FaultAttribution:
    """The reports on one pipeline: opened when it serves, filled when it breaks, closed before the next plan.

    `clock` gives monotonic seconds.
    """

    membership: Membership
    clock: Callable[[], float] = time.monotonic
    quarantine: Quarantine = field(default_factory=Quarantine)
    chronicle: Chronicle = field(default_factory=Chronicle)
    deployment: str = ""
    # Machines whose stage process has ended. The process starts again within seconds.
    restarting: frozenset[NodeId] = frozenset()
    # Whether a stage's own error, or the end of its process, broke the last pipeline, rather than a lost machine
    # or link.
    is_own_error: bool = False
    _serving_since_s: float | None = None
    _heard_since_s: float = 0.0
    _failures: list[tuple[NodeId, wire.Failed]] = field(default_factory=list)
    # Machines that have served in a healthy pipeline. Of two suspects, the other one is blamed.
    _proven: frozenset[NodeId] = frozenset()
    _ended_s: dict[NodeId, float] = field(default_factory=dict)

    def open(self) -> None:
        """Note that a pipeline serves from now on."""
        self._serving_since_s = self.clock()
        self._failures.clear()
        self.restarting = frozenset()
        self.is_own_error = False

    def retire(self, pipeline: frozenset[NodeId]) -> None:
        """Note that the pipeline is taken apart on purpose. Its machines are proven, and its links end now."""
        self._proven = pipeline
        self._serving_since_s = None
        self._failures.clear()

    def note_failure(self, node_id: NodeId, failure: wire.Failed) -> None:
        """Record what a machine reports about the pipeline. Ignore it while no pipeline serves."""
        if self._serving_since_s is None:
            return
        if not self._failures:
            self._heard_since_s = self.clock()
        self._failures.append((node_id, failure))

    @property
    def patience_s(self) -> float:
        """Return how many seconds it is still worth waiting for a clearer report."""
        return max(0.0, self._heard_since_s + CAUSE_PATIENCE_S - self.clock()) if self._failures else 0.0

    def is_clear(self, broken: Deployment) -> bool:
        """Tell whether a report says what happened, not only that a link is broken."""
        return not self._failures or any(self._explains(broken, failure) for _, failure in self._failures)

    def close(self, broken: Deployment) -> frozenset[NodeId]:
        """Pause machines that break pipelines repeatedly. Return them."""
        failures, self._failures = self._failures, []
        since_s, self._serving_since_s = self._serving_since_s, None
        if since_s is None or not failures:
            return frozenset()
        is_settled = self.clock() - since_s >= SETTLED_S
        if is_settled:
            self._proven = broken.pipeline
            for member_id in broken.pipeline:
                self.quarantine.end(member_id)
        self.is_own_error = any(_is_own_error(failure) for _, failure in failures)
        clear = [(node_id, failure) for node_id, failure in failures if self._explains(broken, failure)]
        culprits = {self._judge(broken, *heard, is_settled=is_settled) for heard in clear or failures[:1]}
        return frozenset(culprit for culprit in culprits if culprit)

    def leave_out(self, failure: NodeFailed) -> NodeId:
        """Pause one of these machines, preferably one that never served in a healthy pipeline. Return it."""
        suspects = [NodeId(node_id) for node_id in (failure.node_id, *failure.peer_ids)]
        culprit = next((node_id for node_id in suspects if node_id not in self._proven), suspects[0])
        pause_s = self.quarantine.add(culprit)
        member = self.membership.find(culprit)
        name = member.name if member else culprit
        log.warning("node left out", node=name, node_id=culprit, reason=str(failure), seconds=pause_s)
        self.chronicle.note("failed", f"{name} is left out for {pause_s:.0f} s: {failure}")
        return culprit

    def _stuck_at(self, broken: Deployment) -> list[NodeId]:
        return stuck_at(broken.plan, partial(self.membership.vitals, self.deployment))

    def _explains(self, broken: Deployment, failure: wire.Failed) -> bool:
        if failure.cause == "stuck":
            return bool(self._stuck_at(broken))
        return is_clear(failure)

    def _judge(
        self, broken: Deployment, node_id: NodeId, failure: wire.Failed, *, is_settled: bool
    ) -> NodeId | None:
        match failure:
            case wire.Failed(role="node") | wire.Failed(cause="silent"):
                return None  # The machine takes part again when it is back.
            case wire.Failed(cause="stuck"):
                if not (suspects := self._stuck_at(broken)):
                    return None
                return self.leave_out(NodeFailed(suspects[0], failure.reason, tuple(suspects[1:])))
            case wire.Failed(cause="ended", role=role):
                if role == "stage":
                    self.restarting |= {node_id}
                before_s, self._ended_s[node_id] = self._ended_s.get(node_id), self.clock()
                if before_s is None or self.clock() - before_s >= SETTLED_S:
                    return None
        if is_settled and failure.cause != "invalid":
            return None
        return self.leave_out(suspicion(node_id, failure))


def _is_own_error(failure: wire.Failed) -> bool:
    is_its_own = failure.cause == "error" and not failure.peer_id
    return failure.role != "node" and (is_its_own or failure.cause == "ended")
