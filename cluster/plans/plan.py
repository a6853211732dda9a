"""The choice of which machine holds which layers, and why: a pure function of machines, links and model card."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster.errors import ModelDoesNotFit
from cluster.models.layer_cost import PRECISIONS, Precision
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import CHUNK_TOKENS, StageSpec, WireFormat
from cluster.plans.candidates import Candidates, Task, plain_wire
from cluster.plans.choice import Choice, choose_partition
from cluster.plans.forecast import Costs, Step, links_of
from cluster.plans.needs import BLOCK_TOKENS, CONTEXT_TOKENS_MIN, Needs, context_room, halves, kv_sizes, read_needs
from cluster.plans.network import Network
from cluster.plans.partitions import ALONE, FIRST, LAST, MIDDLE
from cluster.plans.plan_reasons import plan_reasons, stage_reason
from cluster.plans.planned import Goal, Member, Pin, Plan, PlannedStage
from cluster.plans.replicas import place_standbys
from cluster.plans.speeds import is_measured, why_not
from cluster.trust.identity import NodeId

__all__ = [
    "BLOCK_TOKENS",
    "CHUNK_TOKENS",
    "Goal",
    "Member",
    "Pin",
    "Plan",
    "PlannedStage",
    "StageSpec",
    "WireFormat",
    "fit_check",
    "plan_stages",
]

_ON_CPUS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")
_ON_GPUS: tuple[Precision, ...] = ("bf16", "int8", "int4")
_NOWHERE = Network()
# Shrink the context to this before lowering precision.
_CONTEXT_TOKENS_FINE = 4096
# Never suggest a context below this.
_CONTEXT_TOKENS_ODD = 256
# The sequences that a plan with the goal "throughput" expects at once.
_STREAMS = 8


def plan_stages(
    name: str,
    card: ModelCard,
    members: Sequence[Member],
    *,
    precision: Precision | None = None,
    slots: int = 32,
    context_tokens: int | None = None,
    network: Network = _NOWHERE,
    goal: Goal = "throughput",
    stages_min: int = 1,
    pin: Pin | None = None,
    coordinator: NodeId | None = None,
) -> Plan:
    """Return the plan with the least predicted time: machines, their order and layers, each within its memory.

    A model that fits on one machine stays on one, unless `stages_min` asks for more stages. If fewer machines have
    room, there are fewer stages. The machine `coordinator` stays first if this costs little. Without `precision`
    the widest that fits is pinned: fp32 if only CPUs take part, otherwise bf16, then int8, then int4. On CPUs int8
    replaces bf16 if it is faster. Machines that cannot compute in the pinned precision are not placed. Without
    `context_tokens` the model's own context is served. If memory is too small for it, the context is halved down to
    4096 tokens before precision is lowered. At the lowest precision it is halved down to 2048. Raise
    ModelDoesNotFit.
    """
    requested = min(context_tokens or card.context_tokens, card.context_tokens)
    task = Task(
        name=name,
        card=card,
        members=tuple(members),
        network=network,
        goal=goal,
        streams=max(1, min(_STREAMS, slots)),
        slots=slots,
        context_tokens=requested,
        context_requested=requested,
        stages_min=stages_min,
        pin=pin,
        coordinator=coordinator,
    )
    least = requested if context_tokens else min(requested, CONTEXT_TOKENS_MIN)
    fine = requested if context_tokens else min(requested, _CONTEXT_TOKENS_FINE)
    if precision:
        return _plan(_fitting(task, precision, least))
    on_cpus = all(member.machine.device.kind == "cpu" for member in members)
    *wider, narrowest = _ON_CPUS if on_cpus else _ON_GPUS
    for choice in wider:
        try:
            chosen = _fitting(task, choice, fine)
        except ModelDoesNotFit:
            continue
        if choice == "bf16" and on_cpus:
            chosen = _faster(chosen, task, "int8", fine)
        return _plan(chosen)
    return _plan(_fitting(task, narrowest, least))


def fit_check(
    card: ModelCard, *, precision: Precision | None, slots: int, context_tokens: int | None
) -> Callable[[Sequence[Member]], bool]:
    """Return a quick check of machines: False says for certain that `plan_stages` finds no plan over them."""
    requested = min(context_tokens or card.context_tokens, card.context_tokens)
    least = requested if context_tokens else min(requested, CONTEXT_TOKENS_MIN)
    kv_tokens = context_room(least)
    found: dict[tuple[Precision, str], Needs] = {}

    def rooms(member: Member, choice: Precision) -> tuple[int, int, int, int]:
        kind = member.machine.device.kind
        if (choice, kind) not in found:
            found[choice, kind] = read_needs(card, choice, slots, kind, least)
        return found[choice, kind].rooms(max(0, member.machine.memory_usable_bytes), kv_tokens)

    def may_fit(members: Sequence[Member]) -> bool:
        choices = (precision,) if precision else PRECISIONS
        return any(
            _most_layers([rooms(member, choice) for member in members]) >= card.layers for choice in choices
        )

    return may_fit


def _most_layers(rooms: Sequence[tuple[int, int, int, int]]) -> int:
    """Return how many layers these machines hold at most: on one alone, or with a first and a last one."""
    middles = sum(room[MIDDLE] for room in rooms)
    return max(
        [
            *(room[ALONE] for room in rooms),
            *(
                middles + first[FIRST] - first[MIDDLE] + last[LAST] - last[MIDDLE]
                for first, last in itertools.permutations(rooms, 2)
                if first[FIRST] and last[LAST]
            ),
        ],
        default=0,
    )


def _faster(chosen: Choice, task: Task, precision: Precision, context_min: int) -> Choice:
    """Return the other precision's choice if it is faster and every machine has measured its kernels."""
    if not all(is_measured(member.machine.pace, precision) for member in chosen.pipeline_members):
        return chosen
    try:
        other = _fitting(task, precision, context_min)
    except ModelDoesNotFit:
        return chosen
    return other if other.seconds_per_token < chosen.seconds_per_token else chosen


def _fitting(task: Task, precision: Precision, context_min: int) -> Choice:
    """Return the best pipeline, with the longest contexts and the most cache possible. Raise ModelDoesNotFit."""
    refused = [(member, why_not(member.machine.pace, precision)) for member in task.members]
    able = [member for member, reason in refused if not reason]
    for context_tokens in halves(task.context_requested, context_min):
        candidates = Candidates(replace(task, context_tokens=context_tokens), able, precision)
        for kv_tokens in kv_sizes(context_tokens, task.streams):
            if choice := choose_partition(candidates, kv_tokens):
                return replace(choice, refused=tuple((member, reason) for member, reason in refused if reason))
    raise _too_large(candidates)


def _too_large(candidates: Candidates) -> ModelDoesNotFit:
    """Return the error that says how much memory is missing, and what would help."""
    task, card, precision = candidates.task, candidates.task.card, candidates.precision
    kv_tokens = context_room(task.context_tokens)
    rooms = [max(room) for room in candidates.rooms(kv_tokens)]
    usable_bytes = sum(candidates.usable_bytes(at) for at in range(len(rooms)))
    layer_bytes = card.layer_bytes(precision) + kv_tokens * card.kv_bytes_per_token(precision)
    missing = max(1, card.layers - sum(rooms))
    ends_bytes = card.total_bytes(precision) - sum(card.layer_bytes(precision, i) for i in range(card.layers))
    needed_bytes = max(usable_bytes + missing * layer_bytes, card.layers * layer_bytes + ends_bytes)
    remedies = [
        f"add a machine with {(needed_bytes - usable_bytes) / 2**30:.2f} "
        "GiB of usable memory or free as much memory"
    ]
    if shorter := _shorter_context(task, precision, usable_bytes):
        remedies.append(f"set cluster.context_tokens to {shorter} instead of {task.context_tokens}")
    for narrower in _ON_CPUS[_ON_CPUS.index(precision) + 1 :] if precision in _ON_CPUS else ():
        weights_bytes = card.total_bytes(narrower)
        if weights_bytes + kv_tokens * card.layers * card.kv_bytes_per_token(narrower) <= usable_bytes:
            remedies.append(f"choose {narrower}, which needs {weights_bytes / 2**30:.2f} GiB for weights")
            break
    else:
        remedies.append("choose a smaller model")
    if task.pin:
        remedies.append(
            f"let machines other than the {len(task.pin.owners)} owners' hold the first or last layers"
        )
    unable = len(task.members) - len(candidates.members)
    if unable:
        remedies.append(f"choose a precision that the other {unable} machine(s) can compute in")
    return ModelDoesNotFit(f"{task.name} at {precision}", needed_bytes, usable_bytes, " or ".join(remedies))


def _shorter_context(task: Task, precision: Precision, usable_bytes: int) -> int | None:
    """Return the longest context, by halves, that would probably fit, without searching a partition."""
    card = task.card
    token_bytes = sum(card.kv_bytes_per_token(precision, layer) for layer in range(card.layers))
    contexts = halves(task.context_tokens, min(task.context_tokens, _CONTEXT_TOKENS_ODD))[1:]
    free_bytes = usable_bytes - card.total_bytes(precision)
    return next((tokens for tokens in contexts if context_room(tokens) * token_bytes <= free_bytes), None)


def _plan(choice: Choice) -> Plan:
    """Return a pipeline as stages, with standbys, prediction and reasons."""
    task, candidates = choice.task, choice.candidates
    context_tokens = task.context_tokens
    wire = _wire(choice)
    ends = choice.ends
    begins = (0, *ends[:-1])
    places = list(zip(choice.partition.order, begins, ends, strict=True))
    kv_tokens = min(candidates.needs(i).kv_tokens(candidates.usable_bytes(i), a, b) for i, a, b in places)
    kv_blocks = min(kv_tokens, task.slots * context_room(context_tokens)) // BLOCK_TOKENS
    assert kv_blocks * BLOCK_TOKENS >= context_tokens, "the KV cache is smaller than one context"
    stages = tuple(
        PlannedStage(
            candidates.members[i],
            StageSpec(
                index=index,
                stages=len(places),
                first_layer=begin,
                end_layer=end,
                precision=choice.precision,
                context_tokens=context_tokens,
                kv_blocks=kv_blocks,
                slots=task.slots,
                wire=wire,
            ),
            candidates.needs(i).weight_bytes(begin, end),
            stage_reason(choice, index),
        )
        for index, (i, begin, end) in enumerate(places)
    )
    forecast = choice.forecast(wire)
    predicted = forecast.predict(task.streams, _assumed(task, choice))
    standbys = place_standbys(candidates, stages, task.pin)
    return Plan(
        stages=stages,
        precision=choice.precision,
        kv_blocks=kv_blocks,
        slots=task.slots,
        reasons=plan_reasons(choice, stages, standbys, predicted, kv_blocks * BLOCK_TOKENS),
        standbys=standbys,
        predicted=predicted,
        goal=task.goal,
        stages_min=task.stages_min,
        considered=tuple(member.node_id for member in task.members),
    )


def _wire(choice: Choice) -> WireFormat:
    """Return int8 blocks as the row format if stages would otherwise wait for a measured link.

    Packing costs time on both ends, so it must save more than it costs. fp32 rows stay exact.
    """
    plain = choice.forecast(plain_wire(choice.precision))
    if choice.precision == "fp32":
        return "fp32"
    small = Costs(plain.costs.card, choice.precision, "int8")
    for step in (Step(-(-choice.task.streams // max(1, choice.in_flight))), Step(CHUNK_TOKENS, is_prefill=True)):
        for link in plain.links[:-1]:
            waits = plain.costs.link_busy_s(link, step) > max(plain.stage_s(step))
            if link.is_measured and waits and small.hop_s(link, step) < plain.costs.hop_s(link, step):
                return "int8"
    return plain_wire(choice.precision)


def _assumed(task: Task, choice: Choice) -> tuple[str, ...]:
    """Return the unmeasured facts that the prediction relies on."""
    members = choice.pipeline_members
    slow = [m.name for m in members if not is_measured(m.machine.pace, choice.precision)]
    assumed = [f"the speed of {name} in {choice.precision}" for name in slow]
    links = links_of(task.network, [member.node_id for member in members])
    names = [member.name for member in members]
    for link, sender, receiver in zip(links, names, [*names[1:], names[0]], strict=False):
        if not link.is_measured:
            assumed.append(f"the link from {sender} to {receiver}")
    return tuple(assumed)
