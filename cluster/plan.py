"""Which machine holds which layers, and why: a pure function of machines and model card."""

from dataclasses import dataclass

from msgspec import Struct

from cluster.errors import ModelDoesNotFit
from cluster.identity import NodeId
from cluster.model_card import BYTES_PER_VALUE, ModelCard, Precision
from cluster.probe import Machine

BLOCK_TOKENS = 64
CHUNK_TOKENS = 256
# Rows of a step that live at once: residual, normed, fused projections, attention and the allocator's slack.
_WORKSPACE_VECTORS = 8


class Member(Struct, frozen=True):
    """A machine that the plan may use."""

    node_id: NodeId
    name: str
    machine: Machine


class StageSpec(Struct, frozen=True, kw_only=True):
    """One stage: layers [first_layer, end_layer) of the model on one node, and the room for its KV cache."""

    index: int
    stages: int
    first_layer: int
    end_layer: int
    precision: Precision
    context_tokens: int
    kv_blocks: int
    slots: int

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.stages - 1

    @property
    def rows_max(self) -> int:
        """The most rows that one step can bring: a prefill chunk beside every slot decoding."""
        return CHUNK_TOKENS + self.slots


class PlannedStage(Struct, frozen=True):
    member: Member
    spec: StageSpec
    weight_bytes: int
    reason: str


class Plan(Struct, frozen=True, kw_only=True):
    """Stages in ring order, the KV cache they share, and in words why it is so."""

    stages: tuple[PlannedStage, ...]
    precision: Precision
    kv_blocks: int
    slots: int
    reasons: tuple[str, ...]

    @property
    def cut(self) -> tuple[tuple[NodeId, int], ...]:
        """Who holds the layers up to which one: where two plans agree in this, a new ring would gain nothing."""
        return tuple((stage.member.node_id, stage.spec.end_layer) for stage in self.stages)


@dataclass(frozen=True, slots=True)
class _Needs:
    """Bytes that a stage needs, by what it holds."""

    layer_bytes: int
    kv_bytes_per_token: int
    embedding_bytes: int
    workspace_bytes: int
    tied: bool

    def fixed_bytes(self, *, first: bool, last: bool) -> int:
        copies = int(first) + int(last and not (first and self.tied))
        return copies * self.embedding_bytes + self.workspace_bytes

    def room_layers(self, usable_bytes: int, kv_tokens: int, *, first: bool, last: bool) -> int:
        free_bytes = usable_bytes - self.fixed_bytes(first=first, last=last)
        return max(0, free_bytes // (self.layer_bytes + kv_tokens * self.kv_bytes_per_token))


def plan_stages(
    name: str,
    card: ModelCard,
    members: list[Member],
    *,
    precision: Precision | None = None,
    slots: int = 32,
) -> Plan:
    """Cut the layers in proportion to usable memory, every machine within its own.

    Without `precision` the widest that fits is pinned: fp32 where only CPUs take part (bf16 arithmetic is
    slower there than it looks), bf16 otherwise. Machines that cannot hold one layer are left out, with the
    reason. Raises ModelDoesNotFit.
    """
    choices: tuple[Precision, ...] = (precision,) if precision else _precisions(members)
    for choice in choices[:-1]:
        try:
            return _plan_at(name, card, members, choice, slots)
        except ModelDoesNotFit:
            continue
    return _plan_at(name, card, members, choices[-1], slots)


def _precisions(members: list[Member]) -> tuple[Precision, ...]:
    if all(member.machine.device.kind == "cpu" for member in members):
        return ("fp32", "bf16")
    return ("bf16",)


def _plan_at(name: str, card: ModelCard, members: list[Member], precision: Precision, slots: int) -> Plan:
    needs = _needs(card, precision, slots)
    used, left_out = _choose(card, members, needs)
    rooms = _rooms(card, used, needs)
    # A machine chosen by `_choose` has room for a layer, or is the only one.
    if sum(rooms) < card.layers:
        needed_bytes = (
            card.layers * (needs.layer_bytes + _context_room(card) * needs.kv_bytes_per_token)
            + needs.fixed_bytes(first=True, last=True)
        )  # fmt: skip
        raise ModelDoesNotFit(f"{name} at {precision}", needed_bytes, sum(_usable(m) for m in members))
    layers = _cut(card.layers, [_usable(member) for member in used], rooms)
    kv_tokens = min(_kv_tokens(used, layers, needs, at) for at in range(len(used)))
    kv_blocks = min(kv_tokens, slots * _context_room(card)) // BLOCK_TOKENS
    assert kv_blocks * BLOCK_TOKENS >= card.context_tokens, "one sequence could wait for room for ever"
    stages = tuple(_stages(card, used, layers, needs, precision, kv_blocks, slots))
    reasons = (
        f"{name} in {precision}: {card.total_bytes(precision) / 2**20:.0f} MiB of weights on {len(used)} node(s)",
        f"KV cache for {kv_blocks * BLOCK_TOKENS} tokens, {slots} sequences at once",
        *left_out,
    )
    return Plan(stages=stages, precision=precision, kv_blocks=kv_blocks, slots=slots, reasons=reasons)


def _needs(card: ModelCard, precision: Precision, slots: int) -> _Needs:
    rows = CHUNK_TOKENS + slots
    widest = max(2 * card.intermediate, _WORKSPACE_VECTORS * card.hidden)
    # A prefill chunk's mask holds a row for each query head that shares a key-value head; rope has two tables.
    mask_values = card.heads // card.kv_heads * CHUNK_TOKENS * card.context_tokens
    rope_values = 2 * card.context_tokens * card.head_dim
    values = rows * widest + mask_values + rope_values
    return _Needs(
        layer_bytes=card.layer_bytes(precision),
        kv_bytes_per_token=card.kv_bytes_per_token(precision),
        embedding_bytes=card.embedding_bytes(precision),
        workspace_bytes=values * BYTES_PER_VALUE[precision] + slots * card.vocabulary * 4,
        tied=card.tied_embeddings,
    )


def _usable(member: Member) -> int:
    return member.machine.memory_usable_bytes


def _choose(card: ModelCard, members: list[Member], needs: _Needs) -> tuple[list[Member], list[str]]:
    """Leave out machines without room for one layer, and the smallest beyond one machine per layer.

    One at a time: whoever becomes first or last when another leaves needs room for the embeddings, too.
    """
    used, left_out = list(members), []
    while len(used) > 1:
        rooms = dict(zip((member.node_id for member in used), _rooms(card, used, needs), strict=True))
        cramped = [member for member in used if rooms[member.node_id] < 1]
        if not cramped and len(used) <= card.layers:
            break
        member = min(cramped or used, key=_usable)
        used.remove(member)
        why = "has no room for a layer" if cramped else f"is one more than the model's {card.layers} layers"
        left_out.append(f"{member.name} is left out: {_usable(member) / 2**20:.0f} MiB usable, {why}")
    return used, left_out


def _context_room(card: ModelCard) -> int:
    """Tokens of cache that one full context takes: whole blocks."""
    return -(-card.context_tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def _rooms(card: ModelCard, used: list[Member], needs: _Needs) -> list[int]:
    """How many layers each machine could hold with one full context in its KV cache."""
    last = len(used) - 1
    return [
        needs.room_layers(_usable(member), _context_room(card), first=at == 0, last=at == last)
        for at, member in enumerate(used)
    ]


def _cut(layers: int, weights: list[int], rooms: list[int]) -> list[int]:
    """Largest-remainder shares of `layers` by weight, at least one and at most `rooms[i]` each."""
    shares = [1] * len(weights)
    total = sum(weights) or 1
    for _ in range(layers - len(weights)):
        # The machine furthest below its ideal share takes the next layer; a full one takes none.
        behind = [
            layers * weight / total - share if share < room else float("-inf")
            for weight, share, room in zip(weights, shares, rooms, strict=True)
        ]
        shares[behind.index(max(behind))] += 1
    return shares


def _kv_tokens(used: list[Member], layers: list[int], needs: _Needs, at: int) -> int:
    fixed_bytes = needs.fixed_bytes(first=at == 0, last=at == len(used) - 1)
    free_bytes = _usable(used[at]) - fixed_bytes - layers[at] * needs.layer_bytes
    return free_bytes // (layers[at] * needs.kv_bytes_per_token)


def _stages(
    card: ModelCard,
    used: list[Member],
    layers: list[int],
    needs: _Needs,
    precision: Precision,
    kv_blocks: int,
    slots: int,
) -> list[PlannedStage]:
    stages: list[PlannedStage] = []
    total_bytes = sum(_usable(member) for member in used)
    first_layer = 0
    for index, (member, count) in enumerate(zip(used, layers, strict=True)):
        spec = StageSpec(
            index=index,
            stages=len(used),
            first_layer=first_layer,
            end_layer=first_layer + count,
            precision=precision,
            context_tokens=card.context_tokens,
            kv_blocks=kv_blocks,
            slots=slots,
        )
        fixed_bytes = needs.fixed_bytes(first=spec.is_first, last=spec.is_last) - needs.workspace_bytes
        reason = (
            f"{member.name} has {_usable(member) / 2**30:.2f} GiB usable, "
            f"{100 * _usable(member) // max(1, total_bytes)} % of the cluster: "
            f"layers {first_layer}-{spec.end_layer - 1} of {card.layers}"
        )
        stages.append(PlannedStage(member, spec, count * needs.layer_bytes + fixed_bytes, reason))
        first_layer = spec.end_layer
    return stages
