"""The memory that a stage needs: weights, KV cache, rows kept for a later neighbour, activations."""

from dataclasses import dataclass

from cluster.models.layer_cost import BYTES_PER_VALUE, QUANTIZED, Precision
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import CHUNK_TOKENS
from cluster.plans.partitions import ALONE, FIRST, LAST, MIDDLE
from cluster.plans.planned import Plan
from cluster.trust.identity import NodeId

BLOCK_TOKENS = 64
# Rows of a step that live at once: residual, normed, fused projections, attention and the allocator's slack.
_WORKSPACE_VECTORS = 8
# The cache of one stream in tokens: streams with long contexts would reserve memory that is rarely used.
_STREAM_TOKENS = 2048
# A shorter context is of little use, however little memory there is.
CONTEXT_TOKENS_MIN = 2048


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a stage of one model needs in one precision on one kind of device, by what it holds."""

    layer_bytes: tuple[int, ...]
    kv_bytes: tuple[int, ...]
    """KV cache of one token in bytes, by layer."""
    row_bytes: int
    """One token's row that a stage keeps after sending it, to send it again to a replaced next stage."""
    embedding_bytes: int
    head_bytes: int
    workspace_bytes: int

    def weight_bytes(self, first_layer: int, end_layer: int) -> int:
        """Return the bytes of the weights of these layers, with the model's ends if they are included."""
        layers = len(self.layer_bytes)
        first, last = first_layer == 0, end_layer == layers
        return sum(self.layer_bytes[first_layer:end_layer]) + self._ends_bytes(first=first, last=last)

    def token_bytes(self, first_layer: int, end_layer: int) -> int:
        """Return the bytes that one cached token takes on this stage. The last stage sends no rows on."""
        row_bytes = self.row_bytes if end_layer < len(self.layer_bytes) else 0
        return sum(self.kv_bytes[first_layer:end_layer]) + row_bytes

    def stage_bytes(self, first_layer: int, end_layer: int, kv_tokens: int) -> int:
        """Return the bytes of a stage of these layers with a cache of `kv_tokens` tokens."""
        tokens_bytes = kv_tokens * self.token_bytes(first_layer, end_layer)
        return self.weight_bytes(first_layer, end_layer) + self.workspace_bytes + tokens_bytes

    def kv_tokens(self, usable_bytes: int, first_layer: int, end_layer: int) -> int:
        """Return how many tokens' cache fits beside the weights of these layers."""
        free_bytes = usable_bytes - self.weight_bytes(first_layer, end_layer) - self.workspace_bytes
        return free_bytes // self.token_bytes(first_layer, end_layer)

    def rooms(self, usable_bytes: int, kv_tokens: int, *, careful: bool = False) -> tuple[int, int, int, int]:
        """Return how many layers fit, by role. With `careful`, all count as large as the largest."""
        layers = len(self.layer_bytes)
        if careful:
            layer_bytes, kv_bytes = max(self.layer_bytes), max(self.kv_bytes)
        else:
            layer_bytes, kv_bytes = -(-sum(self.layer_bytes) // layers), -(-sum(self.kv_bytes) // layers)
        each_bytes = layer_bytes + kv_tokens * kv_bytes
        sent_bytes = kv_tokens * self.row_bytes
        fixed_bytes = {
            MIDDLE: sent_bytes,
            FIRST: sent_bytes + self._ends_bytes(first=True, last=False),
            LAST: self._ends_bytes(first=False, last=True),
            ALONE: self._ends_bytes(first=True, last=True),
        }
        free_bytes = usable_bytes - self.workspace_bytes
        middle, first, last, alone = (max(0, (free_bytes - fixed_bytes[role]) // each_bytes) for role in range(4))
        return middle, first, last, alone

    def _ends_bytes(self, *, first: bool, last: bool) -> int:
        return first * self.embedding_bytes + last * self.head_bytes


def read_needs(
    card: ModelCard, precision: Precision, slots: int, kind: str, context_tokens: int | None = None
) -> Needs:
    """Return the needs of a model's stages on a device of this kind, with `slots` sequences at once.

    `context_tokens` is the longest context that is served, the model's own by default.
    """
    context_tokens = context_tokens or card.context_tokens
    value_bytes = BYTES_PER_VALUE[precision]
    # GPUs keep values that are not quantized at half the width.
    share = 2 if kind != "cpu" and precision in QUANTIZED else 1
    rows = CHUNK_TOKENS + slots
    width = max(card.intermediate, card.experts.intermediate if card.experts else 0)
    widest = max(2 * width, _WORKSPACE_VECTORS * card.hidden)
    # A prefill chunk's mask holds a row for each query head that shares a key-value head; rope has two tables.
    mask_values = card.heads // card.kv_heads * CHUNK_TOKENS * context_tokens
    rope_values = 2 * context_tokens * card.head_dim
    values = rows * widest + mask_values + rope_values
    return Needs(
        layer_bytes=tuple(card.layer_bytes(precision, layer) for layer in range(card.layers)),
        kv_bytes=tuple(card.kv_bytes_per_token(precision, layer) // share for layer in range(card.layers)),
        row_bytes=card.hidden * (4 if precision == "fp32" else 2),
        embedding_bytes=card.embedding_bytes(precision),
        head_bytes=card.head_bytes(precision),
        workspace_bytes=values * value_bytes + slots * card.vocabulary * 4,
    )


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The usable memory of a machine that stages take: with the whole planned cache, and with one context's."""

    planned_bytes: int
    least_bytes: int

    def __add__(self, other: "StageMemory") -> "StageMemory":
        return StageMemory(self.planned_bytes + other.planned_bytes, self.least_bytes + other.least_bytes)


def stage_memory(plan: Plan, card: ModelCard) -> dict[NodeId, StageMemory]:
    """Return the memory that a plan takes on each of its machines.

    It is the weights of all stages on a machine, plus the cache and activation memory of one of them.
    """
    stages = [*plan.stages, *plan.standbys]
    members = {stage.member.node_id: stage.member for stage in stages}
    held = {}
    for node_id, member in members.items():
        own = [stage for stage in stages if stage.member.node_id == node_id]
        kind = member.machine.device.kind
        needs = read_needs(card, plan.precision, plan.slots, kind, plan.context_tokens)
        weight_bytes = sum(stage.weight_bytes for stage in own)
        room_bytes = [
            max(
                needs.stage_bytes(stage.spec.first_layer, stage.spec.end_layer, tokens)
                - needs.weight_bytes(stage.spec.first_layer, stage.spec.end_layer)
                for stage in own
            )
            for tokens in (plan.kv_blocks * BLOCK_TOKENS, context_room(plan.context_tokens))
        ]
        held[node_id] = StageMemory(weight_bytes + room_bytes[0], weight_bytes + room_bytes[1])
    return held


def context_room(context_tokens: int) -> int:
    """Return the tokens of cache that one full context takes: whole blocks."""
    return -(-context_tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def kv_sizes(context_tokens: int, streams: int) -> list[int]:
    """Return the cache sizes in tokens to try, from enough for this many streams down to one full context."""
    least = context_room(context_tokens)
    return halves(max(least, streams * min(least, _STREAM_TOKENS)), least)


def halves(most: int, least: int) -> list[int]:
    """Return `most`, half of it, and so on down to `least`, which is the last one."""
    sizes = [most]
    while sizes[-1] > least:
        sizes.append(max(least, sizes[-1] // 2))
    return sizes
