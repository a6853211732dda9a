"""One stage's loop: take a step from upstream, run this stage's layers, send it on or sample."""

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
import torch
from torch import Tensor

from cluster import wire
from cluster.decoder import Decoder
from cluster.errors import ClusterError, FrameInvalid, LinkError
from cluster.generation import SampledToken
from cluster.identity import Identity
from cluster.kv_cache import KvCache
from cluster.model_card import ModelCard, read_card
from cluster.plan import StageSpec
from cluster.ring import RingBroken, RingEnd
from cluster.sampler import Sampler
from cluster.store import open_source
from cluster.transport import Frame
from cluster.weights import DTYPES, load_stage

log = structlog.get_logger(__name__)

Report = Callable[[wire.Message], None]

INBOX_FRAMES = 64


@dataclass(slots=True)
class _Loaded:
    """What an assignment turned into."""

    epoch: int
    spec: StageSpec
    card: ModelCard
    decoder: Decoder
    cache: KvCache
    sampler: Sampler


class Stage:
    """An actor: one inbox, read by the thread that also computes. Reader threads and the agent only put."""

    def __init__(self, identity: Identity, host: str, device: torch.device, report: Report) -> None:
        self._device = device
        self._report = report
        self._inbox: queue.Queue[wire.Message | Frame | RingBroken | None] = queue.Queue(INBOX_FRAMES)
        self._ring_end = RingEnd(identity, host, wire.Step, self._inbox.put)
        self._loaded: _Loaded | None = None

    def deliver(self, message: wire.Message) -> None:
        """Called from the agent's pipe thread."""
        self._inbox.put(message)

    def stop(self) -> None:
        self._inbox.put(None)

    def run(self) -> None:
        """Work until `stop`. A failed assignment or step is reported and ends this epoch, not the process."""
        with torch.inference_mode():
            while (item := self._inbox.get()) is not None:
                try:
                    self._handle(item)
                except (ClusterError, RuntimeError, MemoryError, OSError) as error:
                    log.error("stage failed", reason=str(error), exc_info=not isinstance(error, ClusterError))
                    self._fail(self._epoch_of(item), str(error))
        self._ring_end.close()

    def _handle(self, item: wire.Message | Frame | RingBroken) -> None:
        match item:
            case Frame(wire.Step() as step, payload):
                self._step(step, payload)
            case wire.AssignStage():
                self._load(item)
            case wire.Connect():
                self._connect(item)
            case wire.Dismiss(epoch) if self._loaded and self._loaded.epoch < epoch:
                self._ring_end.leave()
                self._loaded = None
            case RingBroken(epoch, reason, peer_id) if self._loaded and self._loaded.epoch == epoch:
                self._report(wire.Failed(epoch, "stage", reason, peer_id))
            case _:
                pass

    def _load(self, assignment: wire.AssignStage) -> None:
        self._ring_end.leave()
        # The old weights go first: there may not be room for both.
        self._loaded = None
        spec, manifest = assignment.spec, assignment.manifest
        card = read_card(manifest.config)
        began = time.monotonic()
        read = open_source(assignment.source)
        weights = load_stage(card, manifest, spec, read, self._device)
        dtype, layers = DTYPES[spec.precision], spec.end_layer - spec.first_layer
        cache = KvCache(layers, card.kv_heads, card.head_dim, spec.kv_blocks, dtype, self._device)
        decoder = Decoder(card, weights, cache)
        sampler = Sampler(card.vocabulary)
        self._loaded = _Loaded(assignment.epoch, spec, card, decoder, cache, sampler)
        widest_bytes = spec.rows_max * card.hidden * dtype.itemsize
        self._ring_end.expect(assignment.epoch, assignment.upstream, widest_bytes)
        log.info(
            "stage loaded",
            epoch=assignment.epoch,
            layers=f"{spec.first_layer}-{spec.end_layer - 1}",
            seconds=round(time.monotonic() - began, 2),
        )
        self._report(wire.Ready(assignment.epoch, "stage", self._ring_end.host, self._ring_end.port))

    def _connect(self, order: wire.Connect) -> None:
        if self._loaded and self._loaded.epoch == order.epoch:
            try:
                self._ring_end.connect(order.epoch, order.downstream)
            except LinkError as error:
                self._report(wire.Failed(order.epoch, "stage", str(error), order.downstream.node_id))
                return
            self._report(wire.Connected(order.epoch))

    def _step(self, step: wire.Step, payload: bytearray) -> None:
        loaded = self._loaded
        if loaded is None or not self._ring_end.is_connected or step.epoch != loaded.epoch:
            return  # A frame of an epoch that is over.
        began_ns = time.perf_counter_ns()
        for slot in step.closed:
            loaded.cache.free(slot)
            loaded.sampler.close(slot)
        if loaded.spec.is_last:
            for opened in step.opened:
                loaded.sampler.open(opened.slot, opened.sampling, opened.history, opened.prompt_tokens)
        rows = self._compute(loaded, step, payload) if step.rows else None
        if not loaded.spec.is_last:
            step.spent_ns.append(time.perf_counter_ns() - began_ns)
            self._ring_end.send(step, _raw(rows) if rows is not None else b"")
            return
        tokens = self._sample(loaded, step, rows) if rows is not None else []
        step.spent_ns.append(time.perf_counter_ns() - began_ns)
        self._ring_end.send(wire.Sampled(step.epoch, step.batch, tokens, step.spent_ns))

    def _compute(self, loaded: _Loaded, step: wire.Step, payload: bytearray) -> Tensor:
        _check(step, loaded.spec, len(payload), loaded.card.hidden)
        batch = loaded.decoder.batch(step.slots, step.starts, step.counts)
        if loaded.spec.is_first:
            token_ids = torch.frombuffer(payload, dtype=torch.int32)
            if not 0 <= int(token_ids.min()) <= int(token_ids.max()) < loaded.card.vocabulary:
                raise FrameInvalid(f"step {step.batch} has tokens outside of the vocabulary")
            rows = loaded.decoder.embed(token_ids.to(self._device))
        else:
            flat = torch.frombuffer(payload, dtype=DTYPES[loaded.spec.precision])
            rows = flat.view(step.rows, loaded.card.hidden).to(self._device)
        return loaded.decoder.forward(rows, batch)

    def _sample(self, loaded: _Loaded, step: wire.Step, rows: Tensor) -> list[SampledToken]:
        last_rows, slots, positions, end = [], [], [], 0
        for slot, start, count, wanted in zip(step.slots, step.starts, step.counts, step.wanted, strict=True):
            end += count
            if wanted:
                last_rows.append(end - 1)
                slots.append(slot)
                positions.append(start + count)
        if not slots:
            return []
        return loaded.sampler.sample(loaded.decoder.logits(rows[last_rows]), slots, positions)

    def _fail(self, epoch: int, reason: str) -> None:
        self._report(wire.Failed(epoch, "stage", reason))

    def _epoch_of(self, item: wire.Message | Frame | RingBroken) -> int:
        message = item.message if isinstance(item, Frame) else item
        return getattr(message, "epoch", 0)


def _check(step: wire.Step, spec: StageSpec, payload_bytes: int, hidden: int) -> None:
    """A peer's certificate makes it known, not right: lengths and ranges are checked before they are used."""
    groups = len(step.slots)
    row_bytes = 4 if spec.is_first else hidden * DTYPES[spec.precision].itemsize
    sound = (
        groups == len(step.starts) == len(step.counts) == len(step.wanted)
        and all(0 <= slot < spec.slots for slot in step.slots)
        and all(count > 0 for count in step.counts)
        and all(
            start >= 0 and start + count <= spec.context_tokens
            for start, count in zip(step.starts, step.counts, strict=True)
        )
        and step.rows <= spec.rows_max
        and payload_bytes == step.rows * row_bytes
    )
    if not sound:
        raise FrameInvalid(f"step {step.batch} contradicts the plan: {groups} groups, {payload_bytes} bytes")


def _raw(rows: Tensor) -> memoryview:
    """A tensor's bytes, without a copy when it lies in main memory."""
    return rows.contiguous().cpu().view(torch.uint8).numpy().reshape(-1).data
