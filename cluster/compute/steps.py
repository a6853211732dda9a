"""One stage's work on a step: moves, rows through its layers, and the frame for the next stage."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from cluster import wire
from cluster.compute.devices import synchronize
from cluster.compute.rows import decode, encode, narrowed, row_bytes
from cluster.compute.sampler import Draw, Sampler
from cluster.compute.saved_blocks import SavedBlocks
from cluster.compute.stage_model import StageModel
from cluster.errors import ClusterError, FrameInvalid
from cluster.generation import SampledToken
from cluster.models.grammar_check import GRAMMAR_CHARACTERS_MAX
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """A stage's layers with the state of running sequences. `digest` is the manifest's.

    `saved` is None if this machine saves no blocks.
    """

    digest: str
    spec: StageSpec
    card: ModelCard
    model: StageModel
    sampler: Sampler
    device: torch.device
    saved: SavedBlocks | None = None

    def forget(self) -> None:
        """Drop the KV cache of all sequences."""
        self._reset({})

    def run(self, step: wire.Step, payload: bytearray) -> tuple[wire.Step | wire.Sampled, memoryview | bytes]:
        """Carry out a step. Return the frame for downstream.

        Raise FrameInvalid if the step contradicts the plan, ClusterError if it contradicts what is held here.
        """
        began_ns = time.perf_counter_ns()
        self._check(step, len(payload))
        self._prepare(step)
        rows = self._measured(self.saved, step, payload) if self.saved else self._rows(step, payload)
        if not self.spec.is_last:
            content = encode(rows, self.spec.wire) if rows is not None else b""
            step.spent_ns.append(time.perf_counter_ns() - began_ns)
            return step, content
        answers = self._sample(step, rows) if rows is not None and not step.replay else []
        step.spent_ns.append(time.perf_counter_ns() - began_ns)
        tokens = [token for answer in answers for token in answer]
        counts, restored = [len(answer) for answer in answers], [len(order.names) for order in step.restores]
        return wire.Sampled(step.epoch, step.batch, tokens, counts, step.spent_ns, restored, step.held), b""

    def _check(self, step: wire.Step, payload_bytes: int) -> None:
        """Raise FrameInvalid for wrong lengths and ranges, before they are used.

        A peer's certificate makes it known, not correct.
        """
        spec, groups = self.spec, len(step.slots)
        drafts = step.drafts or [[]] * groups
        # Stages before the last one do not get the drafts.
        guessed = [max(0, wanted - 1) if spec.is_last else 0 for wanted in step.wanted]
        sound = (
            groups == len(step.starts) == len(step.counts) == len(step.wanted) == len(drafts)
            and len(set(step.slots)) == groups
            and all(0 <= slot < spec.slots for slot in step.slots)
            and all(
                start >= 0 and count > 0 and start + count <= spec.context_tokens
                for start, count in zip(step.starts, step.counts, strict=True)
            )
            and all(
                0 <= wanted <= count and len(draft) == guess
                for wanted, count, draft, guess in zip(step.wanted, step.counts, drafts, guessed, strict=True)
            )
            and all(_is_possible(move, spec.slots) for move in step.moves)
            and all(self._is_known(opened) for opened in step.opened)
            and all(self._fits(order.slot, 0, len(order.names), order.names) for order in step.saves)
            and all(
                self._fits(order.slot, order.first_block, order.blocks, order.names) for order in step.restores
            )
            and not (step.rows and step.restores)
            and (step.rows > 0 or not step.replay)
            and step.rows <= spec.rows_max
            and sum(step.wanted) <= 2 * spec.slots
            and payload_bytes == (step.rows * self._row_bytes() if self._has_rows(step) else 0)
        )
        if not sound:
            raise FrameInvalid(f"step {step.batch} contradicts the plan: {groups} groups, {payload_bytes} bytes")

    def _is_known(self, opened: wire.OpenSlot) -> bool:
        """Tell whether the slot exists and its tokens are the model's."""
        history = opened.history
        are_tokens = not history or 0 <= min(history) <= max(history) < self.card.vocabulary
        # Biases may name ids that only the tokenizer has: they are skipped.
        return (
            0 <= opened.slot < self.spec.slots
            and are_tokens
            and opened.prompt_tokens >= 0
            and min(opened.sampling.logit_bias, default=0) >= 0
            and len(opened.grammar) <= GRAMMAR_CHARACTERS_MAX
        )

    def _fits(self, slot: int, first_block: int, blocks: int, names: list[bytes]) -> bool:
        """Tell whether the slot has such blocks, and each name is one."""
        return (
            0 <= slot < self.spec.slots
            and first_block >= 0
            and len(names) <= blocks
            and (first_block + blocks) * BLOCK_TOKENS <= self.spec.context_tokens
            and all(len(name) == wire.SAVED_NAME_BYTES for name in names)
        )

    def _row_bytes(self) -> int:
        return 4 if self.spec.is_first else row_bytes(self.card.hidden, self.spec.wire)

    def _has_rows(self, step: wire.Step) -> bool:
        return not step.replay or self.spec.index in step.replay

    def _prepare(self, step: wire.Step) -> None:
        cache = self.model.cache
        if step.is_reset:
            self._reset(dict(step.census or []))
        if not step.batch:  # The first step of a pipeline.
            step.held = self._held(step)
        if self.saved:
            self._note_saves(self.saved, step)
        for move in step.moves:
            if move.source < 0:
                cache.free(move.slot)
                self.sampler.close(move.slot)
            else:
                cache.copy(move.source, move.slot, move.tokens)
        step.restores = [self._restore(order) for order in step.restores]
        if self.spec.is_last:
            for opened in step.opened:
                self.sampler.open(
                    opened.slot, opened.sampling, opened.history, opened.prompt_tokens, opened.grammar
                )
        if step.census is not None and not step.is_reset:
            counted, held = dict(step.census), cache.loaded_stages()
            if counted != held:
                raise ClusterError(f"the KV cache holds the blocks {held}, the coordinator counts {counted}")

    def _held(self, step: wire.Step) -> list[bytes] | None:
        """Return the names of the blocks that this stage and all before it have saved; None if one saves nothing."""
        if self.saved is None or (step.held is None and not self.spec.is_first):
            return None
        return self.saved.held(step.held)

    def _note_saves(self, saved: SavedBlocks, step: wire.Step) -> None:
        for order in step.saves:
            if len(order.names) > self.model.cache.loaded_stages().get(order.slot, 0):
                raise ClusterError(f"slot {order.slot} holds fewer than {len(order.names)} blocks to save")
            saved.save(order)
        for move in step.moves:
            saved.forget_slot(move.slot)
        for slot, start in zip(step.slots, step.starts, strict=True):
            saved.forget_slot(slot, start // BLOCK_TOKENS)

    def _restore(self, order: wire.Restore) -> wire.Restore:
        if self.saved:
            return self.saved.restore(order)
        self.model.cache.reserve(order.slot, (order.first_block + order.blocks) * BLOCK_TOKENS)
        return wire.Restore(order.slot, order.first_block, order.blocks, [])

    def _reset(self, counted: dict[int, int]) -> None:
        """Hold exactly what the coordinator counts. Computed content of a slot stays.

        A slot with more than the count had another owner; the order to free it never reached this stage.
        """
        cache = self.model.cache
        if self.saved:
            self.saved.forget_slots()
        for slot, blocks in cache.loaded_stages().items():
            if blocks > counted.get(slot, 0):
                cache.free(slot)
        for slot, blocks in counted.items():
            cache.reserve(slot, blocks * BLOCK_TOKENS)
        self.sampler.close_all()

    def _measured(self, saved: SavedBlocks, step: wire.Step, payload: bytearray) -> Tensor | None:
        """Return `_rows`. Tell the saved blocks how long computing takes, which restoring must beat."""
        if not (self._has_rows(step) and saved.measures(step.rows)):
            return self._rows(step, payload)
        synchronize(self.device)
        began_ns = time.perf_counter_ns()
        rows = self._rows(step, payload)
        synchronize(self.device)
        saved.observe(step.rows, time.perf_counter_ns() - began_ns)
        return rows

    def _rows(self, step: wire.Step, payload: bytearray) -> Tensor | None:
        """Return the rows [rows, hidden] for the next stage or for sampling; None if there are none."""
        if step.replay:
            return self._replay(step, payload)
        return self._forward(step, payload) if step.rows else None

    def _replay(self, step: wire.Step, payload: bytearray) -> Tensor | None:
        """Return rows [rows, hidden] if the next stage is fed again: from the layers here or from stored rows."""
        is_next_fed = self.spec.index + 1 in step.replay
        if self.spec.index in step.replay:
            rows = self._forward(step, payload)
            return rows if is_next_fed else None
        if not is_next_fed:
            return None
        groups = zip(step.slots, step.starts, step.counts, strict=True)
        return torch.cat([self.model.cache.read_outputs(*group) for group in groups])

    def _forward(self, step: wire.Step, payload: bytearray) -> Tensor:
        """Return output rows [rows, hidden] of this stage's layers. Store them, unless this is the last stage."""
        model = self.model
        batch = model.batch(step.slots, step.starts, step.counts)
        if self.spec.is_first:
            token_ids = torch.frombuffer(payload, dtype=torch.int32)
            if not 0 <= int(token_ids.min()) <= int(token_ids.max()) < self.card.vocabulary:
                raise FrameInvalid(f"step {step.batch} has tokens outside the vocabulary")
            rows = model.embed(token_ids.to(self.device))
        else:
            rows = decode(payload, step.rows, self.card.hidden, self.spec.wire, model.row_dtype).to(self.device)
        rows = model.forward(rows, batch)
        return rows if self.spec.is_last else self._kept(step, rows)

    def _kept(self, step: wire.Step, rows: Tensor) -> Tensor:
        """Store rows [rows, hidden] at the width of the link, by slot and position, and return them."""
        kept = narrowed(rows, self.spec.wire)
        offset = 0
        for slot, start, count in zip(step.slots, step.starts, step.counts, strict=True):
            self.model.cache.write_outputs(slot, start, kept[offset : offset + count])
            offset += count
        return kept

    def _sample(self, step: wire.Step, rows: Tensor) -> list[list[SampledToken]]:
        chosen: list[int] = []
        draws: list[Draw] = []
        end = 0
        drafts = step.drafts or [[]] * len(step.slots)
        for slot, start, count, wanted, draft in zip(
            step.slots, step.starts, step.counts, step.wanted, drafts, strict=True
        ):
            end += count
            if wanted:
                chosen.extend(range(end - wanted, end))
                draws.append(Draw(slot, start + count - wanted + 1, tuple(draft)))
        if not draws:
            return []
        wanted_rows = rows if len(chosen) == len(rows) else rows[chosen]
        return self.sampler.sample(self.model.logits(wanted_rows), draws)


def _is_possible(move: wire.Move, slots: int) -> bool:
    return 0 <= move.slot < slots and move.source < slots and (move.source < 0 or move.tokens > 0)
