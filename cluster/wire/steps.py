"""Messages of the pipeline's links, from the coordinator through all stages and back.

coordinator -> first stage -> ... -> last stage -> coordinator
"""

from msgspec import Struct

from cluster.generation import SampledToken, Sampling
from cluster.wire.orders import NO_TERMS, Terms


class PipelineHello(Struct, frozen=True, tag=True):
    """The first message on a link of the pipeline."""

    epoch: int
    terms: Terms = NO_TERMS


class OpenSlot(Struct, frozen=True, array_like=True):
    """The state of a sequence that moves into a slot: the last stage needs its sampling and its tokens so far.

    Its output must follow `grammar`, which is empty for none.
    """

    slot: int
    sampling: Sampling
    history: list[int]
    prompt_tokens: int
    grammar: str = ""


class Move(Struct, frozen=True, array_like=True):
    """The order to begin `slot` with the first `tokens` tokens of the slot `source`. Without a source, free it."""

    slot: int
    source: int = -1
    tokens: int = 0


SAVED_NAME_BYTES = 16


class Save(Struct, frozen=True, array_like=True):
    """The order to save a slot's first blocks on disk, under these names, when there is time."""

    slot: int
    names: list[bytes]


class Restore(Struct, frozen=True, array_like=True):
    """The order to fill `blocks` blocks of a slot, from `first_block` on, from the disk.

    A stage restores as many as it can, and removes the other names: the next stage restores no more than this one.
    """

    slot: int
    first_block: int
    blocks: int
    names: list[bytes]


class Step(Struct, tag=True):
    """One micro-batch on its way through the stages.

    Row group i belongs to slot `slots[i]`, begins at position `starts[i]` and is `counts[i]` rows long. Its last
    `wanted[i]` rows are to be sampled. All but the first of these are drafts, which `drafts[i]` repeats for the
    last stage: sampling stops at the first draft that the model does not agree with.

    Stages carry out `moves` in order and set up `opened` slots before any row runs. The payload holds int32 token
    ids [sum(counts)] on the first link, and rows [sum(counts), hidden] in the plan's wire format on the others.
    `spent_ns` gathers the stages' busy time in nanoseconds.

    On links, `drafts` and `opened` travel in `sealed`, which only the last stage can read, since they are tokens.
    `replay` names stages that have lost their KV cache. Rows travel only into these, from the output rows that the
    stages before them have kept. `census` has the (slot, blocks) that a stage must hold. A reset makes a stage
    match it; otherwise a difference is an error.

    `saves` and `restores` concern blocks on the stages' disks. `saves` come before `moves`, `restores` after them, in
    a step without rows. In a pipeline's first step `held` gathers the names of blocks that every stage has saved; it
    is None if a stage saves none.
    """

    epoch: int
    batch: int
    slots: list[int]
    starts: list[int]
    counts: list[int]
    wanted: list[int]
    drafts: list[list[int]]
    opened: list[OpenSlot]
    moves: list[Move]
    replay: list[int]
    census: list[tuple[int, int]] | None
    is_reset: bool
    spent_ns: list[int]
    sealed: bytes = b""
    saves: list[Save] = []
    restores: list[Restore] = []
    held: list[bytes] | None = None

    @property
    def rows(self) -> int:
        return sum(self.counts)

    @property
    def pairs(self) -> int:
        """Return the number of (row, earlier position) pairs of this step."""
        groups = zip(self.starts, self.counts, strict=True)
        return sum(count * (start + (count + 1) // 2) for start, count in groups)


class Sampled(Struct, frozen=True, tag=True):
    """The batch's tokens: `counts[i]` of them, at least one, for the i-th of its groups that are sampled.

    `restored` has the number of blocks that every stage has restored, for each restore of the step.
    """

    epoch: int
    batch: int
    tokens: list[SampledToken]
    counts: list[int]
    spent_ns: list[int]
    restored: list[int] = []
    held: list[bytes] | None = None
