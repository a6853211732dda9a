"""Keeps copies of a pipeline's stages loaded on machines outside it, one at a time on each machine."""

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from cluster import wire
from cluster.control.deployment import Model
from cluster.control.loaded_stages import LoadedStages
from cluster.errors import LinkLost
from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import PlannedStage
from cluster.trust.identity import NodeId

log = structlog.get_logger(__name__)

Send = Callable[[NodeId, wire.DeploymentMessage], Awaitable[None]]
"""Sends an order to a node. Raises LinkLost."""


class Standbys:
    """The copies to keep loaded. The deployment's task owns it. `loaded_stages` records the loaded copies."""

    def __init__(self, loaded_stages: LoadedStages, send: Send) -> None:
        self._loaded_stages = loaded_stages
        self._send = send
        self._epoch = wire.ANY_EPOCH
        self._model: Model | None = None
        self._waiting: dict[NodeId, deque[PlannedStage]] = {}
        self._copies: tuple[PlannedStage, ...] = ()

    @property
    def ready(self) -> tuple[PlannedStage, ...]:
        """The copies that are loaded."""
        return tuple(copy for copy in self._copies if self._loaded_stages.has(copy.member.node_id, copy.spec))

    async def keep_loaded(self, epoch: int, model: Model, copies: Sequence[PlannedStage]) -> None:
        """Keep exactly these copies loaded from now on."""
        self._epoch, self._model, self._copies = epoch, model, tuple(copies)
        self._waiting = {}
        for copy in copies:
            if not self._loaded_stages.has(copy.member.node_id, copy.spec):
                self._waiting.setdefault(copy.member.node_id, deque()).append(copy)
        await self._tidy()
        for node_id in self._waiting:
            with contextlib.suppress(LinkLost):
                await self._send(node_id, wire.Dismiss(epoch))
            await self._ask(node_id)

    def pause(self) -> None:
        """Order no more copies until `keep_loaded`: the next pipeline needs the shelves."""
        self._waiting = {}

    def clear(self) -> None:
        """Keep no copies: every machine has unloaded the deployment."""
        self._waiting, self._copies = {}, ()

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
            self._loaded_stages.shelved.setdefault(node_id, set()).add(copy.spec)
            log.info("standby ready", epoch=self._epoch, reason=copy.reason)
        else:
            reason = answer.reason or "the copy is no longer needed"
            log.warning("no standby", epoch=self._epoch, node=copy.member.name, reason=reason)
        await self._ask(node_id)

    async def _tidy(self) -> None:
        """Free the memory of copies that are no longer needed."""
        assert self._model
        for node_id, shelved in list(self._loaded_stages.shelved.items()):
            specs = self._specs(node_id)
            if not shelved <= set(specs):
                shelved.intersection_update(specs)
                with contextlib.suppress(LinkLost):
                    await self._send(node_id, wire.Tidy(self._epoch, self._model.manifest.digest, specs))

    def _specs(self, node_id: NodeId) -> list[StageSpec]:
        return [copy.spec for copy in self._copies if copy.member.node_id == node_id]

    async def _ask(self, node_id: NodeId) -> None:
        if (waiting := self._waiting.get(node_id)) and self._model:
            manifest, source = self._model.manifest, str(self._model.folder)
            others = self._specs(node_id)
            order = wire.Shelve(self._epoch, waiting[0].spec, manifest, source, others=others)
            try:
                await self._send(node_id, order)
            except LinkLost:
                waiting.clear()  # The machine is gone. It gets its orders again when it is back.
