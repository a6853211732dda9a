"""Keeps copies of a ring's stages loaded on machines beside it, one at a time on each machine."""

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from cluster import wire
from cluster.control.deployment import Model
from cluster.control.loaded_stages import Holdings
from cluster.errors import LinkLost
from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import PlannedStage
from cluster.trust.identity import NodeId

log = structlog.get_logger(__name__)

Send = Callable[[NodeId, wire.Message], Awaitable[None]]
"""Sends a message to a node. Raises LinkLost."""


class Standbys:
    """The wanted copies. The deployment's task owns it; loaded ones are recorded in `holdings`."""

    def __init__(self, holdings: Holdings, send: Send) -> None:
        self._holdings = holdings
        self._send = send
        self._epoch = wire.ANY_EPOCH
        self._model: Model | None = None
        self._waiting: dict[NodeId, deque[PlannedStage]] = {}
        self._wanted: tuple[PlannedStage, ...] = ()

    @property
    def ready(self) -> tuple[PlannedStage, ...]:
        """The wanted copies that are loaded."""
        return tuple(copy for copy in self._wanted if self._holdings.has(copy.member.node_id, copy.spec))

    async def want(self, epoch: int, model: Model, copies: Sequence[PlannedStage]) -> None:
        """Keep exactly these copies loaded from now on."""
        self._epoch, self._model, self._wanted = epoch, model, tuple(copies)
        self._waiting = {}
        for copy in copies:
            if not self._holdings.has(copy.member.node_id, copy.spec):
                self._waiting.setdefault(copy.member.node_id, deque()).append(copy)
        await self._tidy()
        for node_id in self._waiting:
            with contextlib.suppress(LinkLost):
                await self._send(node_id, wire.Dismiss(epoch))
            await self._ask(node_id)

    def pause(self) -> None:
        """Ask for no more copies until `want`: the next ring needs the shelves."""
        self._waiting = {}

    def forget(self, node_id: NodeId) -> bool:
        """Note that a machine's stage process is gone. Return whether it had a copy to load."""
        return bool(self._waiting.pop(node_id, None))

    async def note(self, node_id: NodeId, answer: wire.Shelved) -> None:
        """Take a machine's answer: it has loaded a copy, or says why not."""
        waiting = self._waiting.get(node_id)
        if answer.epoch != self._epoch or not waiting or waiting[0].spec != answer.spec:
            return
        copy = waiting.popleft()
        if answer.ok:
            self._holdings.shelved.setdefault(node_id, set()).add(copy.spec)
            log.info("standby ready", epoch=self._epoch, reason=copy.reason)
        else:
            reason = answer.reason or "it is no longer wanted"
            log.warning("no standby", epoch=self._epoch, node=copy.member.name, reason=reason)
        await self._ask(node_id)

    async def _tidy(self) -> None:
        """Free the memory of copies that are no longer wanted."""
        assert self._model
        for node_id, shelved in list(self._holdings.shelved.items()):
            wanted = self._specs(node_id)
            if not shelved <= set(wanted):
                shelved.intersection_update(wanted)
                with contextlib.suppress(LinkLost):
                    await self._send(node_id, wire.Tidy(self._epoch, self._model.manifest.digest, wanted))

    def _specs(self, node_id: NodeId) -> list[StageSpec]:
        return [copy.spec for copy in self._wanted if copy.member.node_id == node_id]

    async def _ask(self, node_id: NodeId) -> None:
        if (waiting := self._waiting.get(node_id)) and self._model:
            manifest, source = self._model.manifest, str(self._model.folder)
            others = self._specs(node_id)
            order = wire.Shelve(self._epoch, waiting[0].spec, manifest, source, others=others)
            try:
                await self._send(node_id, order)
            except LinkLost:
                waiting.clear()  # The machine is gone. It is asked again when it is back.
