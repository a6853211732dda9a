"""One stage's actor: it is assigned layers, takes steps from upstream and sends the results downstream."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
from msgspec.structs import replace

from cluster import wire
from cluster.compute.block_files import BlockFiles
from cluster.compute.grammars import Grammars
from cluster.compute.rows import row_bytes
from cluster.compute.sampler import Sampler
from cluster.compute.saved_blocks import SavedBlocks
from cluster.compute.stage_model import load_stage_model
from cluster.compute.steps import LoadedStage
from cluster.engine.pipeline_links import PipelineBroken, PipelineEnd
from cluster.engine.sealing import Seal
from cluster.errors import ClusterError, LinkError
from cluster.models.manifest import Manifest
from cluster.models.model_card import read_card
from cluster.models.stage_spec import StageSpec
from cluster.models.store import open_source
from cluster.net.transport import Frame
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

Report = Callable[[wire.Message], None]

INBOX_FRAMES = 64
# Errors of an order or a step, even if a peer caused them: they end the epoch, not the process.
_FAILURES = (ClusterError, RuntimeError, MemoryError, OSError, LookupError, ValueError, ArithmeticError)
SHELF_MAX = 8
# The pause before a stage looks again whether the disk has caught up, in seconds.
_BEHIND_S = 0.02
# The time for saving what was computed last, at the end of the process, in seconds.
_LAST_SAVES_S = 1.0


@dataclass(frozen=True, slots=True)
class _Shelved:
    """A loaded standby, on its way from the loading thread to the shelf."""

    order: wire.Shelve
    loaded: LoadedStage | None
    reason: str = ""


_Copy = tuple[str, StageSpec]
"""(manifest digest, layers)"""

_Item = wire.Message | Frame | PipelineBroken | _Shelved


class Stage:
    """An actor with one inbox. The thread that reads it also computes; reader threads and the agent only put.

    Without `files` it saves no blocks.
    """

    def __init__(
        self,
        identity: Identity,
        host: str,
        device: torch.device,
        report: Report,
        files: BlockFiles | None = None,
    ) -> None:
        self._device = device
        self._files = files
        self._report = report
        self._inbox: queue.Queue[_Item | None] = queue.Queue(INBOX_FRAMES)
        self._pipeline_end = PipelineEnd(identity, host, wire.Step, self._inbox.put)
        self._loaded: LoadedStage | None = None
        self._epoch = 0
        # Set on the last stage only.
        self._seal: Seal | None = None
        # Hot standbys, loaded beside the served layers, in the order of their arrival. `_copies_to_keep` are the
        # copies that the controller asks for. `_loading` maps copies being loaded to the epoch that last ordered
        # them.
        self._shelf: list[LoadedStage] = []
        self._copies_to_keep: set[_Copy] = set()
        self._loading: dict[_Copy, int] = {}

    def deliver(self, message: wire.Message) -> None:
        """Pass a message to the stage. The agent's pipe thread calls this."""
        if isinstance(message, wire.Removed):
            self._pipeline_end.disconnect(message.node_ids)
        else:
            self._inbox.put(message)

    def stop(self) -> None:
        self._inbox.put(None)

    def vitals(self) -> wire.Vitals:
        """Return the counters for the agent. Its pipe thread calls this."""
        return wire.Vitals(self._pipeline_end.received, self._pipeline_end.sent)

    def run(self) -> None:
        """Work until `stop`. A failed assignment or step is reported and ends this epoch, not the process."""
        with torch.inference_mode():
            while (item := self._next_item()) is not None:
                try:
                    self._handle(item)
                except _FAILURES as error:
                    log.error("stage failed", reason=str(error), exc_info=not isinstance(error, ClusterError))
                    self._report(wire.Failed(_epoch_of(item), "stage", str(error)))
                    if isinstance(item, Frame):
                        # Later steps would read a gap in the KV cache. Leaving tells both neighbours at once.
                        self._pipeline_end.leave()
            self._pipeline_end.close()
            self._finish_saves()

    def _next_item(self) -> _Item | None:
        """Wait for the next item. Save blocks while there is none."""
        while (saved := self._saved) and saved.has_pending:
            try:
                return self._inbox.get_nowait()
            except queue.Empty:
                pass
            if not saved.save_next():
                with contextlib.suppress(queue.Empty):
                    return self._inbox.get(timeout=_BEHIND_S)
        return self._inbox.get()

    @property
    def _saved(self) -> SavedBlocks | None:
        return self._loaded.saved if self._loaded else None

    def _finish_saves(self) -> None:
        until_s = time.monotonic() + _LAST_SAVES_S
        while (saved := self._saved) and saved.has_pending and time.monotonic() < until_s:
            if not saved.save_next():
                time.sleep(_BEHIND_S)
        if self._files:
            self._files.close(_LAST_SAVES_S)

    def _handle(self, item: _Item) -> None:
        match item:
            case Frame(wire.Step() as step, payload):
                self._step(step, payload)
            case wire.AssignStage():
                self._assign(item)
            case wire.Shelve():
                self._shelve(item)
            case _Shelved():
                self._put_on_shelf(item)
            case wire.Tidy(epoch, digest, specs):
                self._tidy(epoch, digest, specs)
            case wire.Connect():
                self._connect(item)
            case wire.Dismiss(epoch) if self._epoch < epoch:
                # The loaded layers stay: the next assignment may be for the same ones.
                self._pipeline_end.leave()
            case PipelineBroken(epoch, reason, peer_id, cause) if self._epoch == epoch:
                self._report(wire.Failed(epoch, "stage", reason, peer_id, cause))
            case _:
                pass

    def _assign(self, order: wire.AssignStage) -> None:
        self._pipeline_end.leave()
        began = time.monotonic()
        kept = order.keep_kv and self._holds(order.spec, order.manifest)
        self._loaded = loaded = self._take(order) or self._load(order.spec, order.manifest, order.source)
        self._epoch = order.epoch
        self._seal = Seal(order.seal_key) if order.seal_key else None
        saved_blocks = loaded.saved.look() if loaded.saved else 0
        spec, terms = order.spec, wire.Terms(order.manifest.digest, order.spec.precision)
        self._pipeline_end.expect(
            order.epoch, order.upstream, spec.rows_max * row_bytes(loaded.card.hidden, spec.wire), terms
        )
        log.info(
            "stage loaded",
            epoch=order.epoch,
            layers=f"{spec.first_layer}-{spec.end_layer - 1}",
            kept=kept,
            saved_blocks=saved_blocks,
            seconds=round(time.monotonic() - began, 2),
        )
        host, port = self._pipeline_end.host, self._pipeline_end.port
        ready = wire.Ready(order.epoch, "stage", host, port, kept=kept, terms=terms, wire=spec.wire)
        if grammars := loaded.sampler.grammars:
            ready = replace(ready, unconstrained=grammars.unavailable)
        self._report(ready)

    def _holds(self, spec: StageSpec, manifest: Manifest) -> bool:
        loaded = self._loaded
        return loaded is not None and (loaded.digest, loaded.spec) == (manifest.digest, spec)

    def _take(self, order: wire.AssignStage) -> LoadedStage | None:
        """Return the ordered layers if they are loaded already, in the current pipeline or on the shelf.

        Otherwise drop everything except standbys: memory may not hold old and new weights together.
        """
        loaded, self._loaded = self._loaded, None
        if loaded and (loaded.digest, loaded.spec) == (order.manifest.digest, order.spec):
            if not order.keep_kv:
                loaded.forget()
            return loaded
        for at, standby in enumerate(self._shelf):
            if (standby.digest, standby.spec) == (order.manifest.digest, order.spec):
                return self._shelf.pop(at)
        # This is another partition: the standbys belong to the old one.
        self._shelf.clear()
        self._copies_to_keep.clear()
        return None

    def _load(self, spec: StageSpec, manifest: Manifest, source: str) -> LoadedStage:
        card = read_card(manifest.config)
        model = load_stage_model(card, manifest, spec, open_source(source), self._device)
        grammars = Grammars(Path(source), card.vocabulary) if spec.is_last else None
        sampler = Sampler(card.vocabulary, grammars)
        saved = SavedBlocks(self._files, card, manifest.digest, spec, model.cache) if self._files else None
        return LoadedStage(manifest.digest, spec, card, model, sampler, self._device, saved)

    def _shelve(self, order: wire.Shelve) -> None:
        """Load a standby on its own thread, so that serving goes on meanwhile."""
        copy = order.manifest.digest, order.spec
        self._tidy(order.epoch, order.manifest.digest, [order.spec, *order.others])
        if self._has(copy):
            self._report(wire.Shelved(order.epoch, order.spec, ok=True))
            return
        is_under_way = copy in self._loading
        self._loading[copy] = order.epoch
        if is_under_way:
            return

        def work() -> None:
            try:
                with torch.inference_mode():
                    loaded = self._load(order.spec, order.manifest, order.source)
            except _FAILURES as error:
                self._inbox.put(_Shelved(order, None, str(error)))
            else:
                self._inbox.put(_Shelved(order, loaded))

        threading.Thread(target=work, name="shelf", daemon=True).start()

    def _tidy(self, epoch: int, digest: str, specs: list[StageSpec]) -> None:
        """Drop copies other than these. Layers of a pipeline that this process has left serve as a standby."""
        if self._loaded and self._epoch < epoch and not self._pipeline_end.is_connected:
            self._loaded.forget()
            self._shelf.append(self._loaded)
            self._loaded = None
        self._copies_to_keep = {(digest, spec) for spec in specs}
        self._shelf = [held for held in self._shelf if (held.digest, held.spec) in self._copies_to_keep]

    def _has(self, copy: _Copy) -> bool:
        loaded = [*self._shelf, *([self._loaded] if self._loaded else [])]
        return any((held.digest, held.spec) == copy for held in loaded)

    def _put_on_shelf(self, shelved: _Shelved) -> None:
        """Put a loaded standby on the shelf, unless it is already there or the controller no longer needs it."""
        spec = shelved.order.spec
        copy = shelved.order.manifest.digest, spec
        epoch = self._loading.pop(copy)
        is_there = self._has(copy)
        if shelved.loaded and not is_there and copy in self._copies_to_keep:
            self._shelf = [*self._shelf, shelved.loaded][-SHELF_MAX:]
            is_there = True
            log.info("standby loaded", layers=f"{spec.first_layer}-{spec.end_layer - 1}")
        self._report(wire.Shelved(epoch, spec, ok=is_there, reason="" if is_there else shelved.reason))

    def _connect(self, order: wire.Connect) -> None:
        loaded = self._loaded
        if loaded and self._epoch == order.epoch:
            try:
                self._pipeline_end.connect(
                    order.epoch, order.downstream, wire.Terms(loaded.digest, loaded.spec.precision)
                )
            except LinkError as error:
                self._report(wire.Failed(order.epoch, "stage", str(error), order.downstream.node_id))
                return
            self._report(wire.Connected(order.epoch))

    def _step(self, step: wire.Step, payload: bytearray) -> None:
        loaded = self._loaded
        if loaded is None or not self._pipeline_end.is_connected or step.epoch != self._epoch:
            return  # This frame belongs to an epoch that is over.
        if self._seal:
            self._seal.open(step)
        self._pipeline_end.send(*loaded.run(step, payload))


def _epoch_of(item: _Item) -> int:
    message = item.message if isinstance(item, Frame) else item
    return getattr(message, "epoch", 0)
