"""A plan's reasons in words: its layer placement, its gain, and the machines left out, each with two figures."""

from collections.abc import Sequence

from cluster.plans.choice import Choice
from cluster.plans.forecast import Prediction
from cluster.plans.partitions import ALONE, Fleet, Partition, best_partition, caps, cost_s, stage_seconds
from cluster.plans.planned import PlannedStage


def stage_reason(choice: Choice, index: int) -> str:
    """Return why this machine holds these layers."""
    fleet, partition, candidates = choice.fleet, choice.partition, choice.candidates
    i, count, stages = partition.order[index], partition.counts[index], len(partition.order)
    end = choice.ends[index]
    name, layers = candidates.members[i].name, choice.task.card.layers
    has = f"{name} has {candidates.usable_bytes(i) / 2**30:.2f} GiB usable"
    held = f"layers {end - count}-{end - 1} of {layers}"
    if stages == 1:
        return f"{has} and holds the whole model: {held}"
    room = caps(fleet, partition.order)[index]
    seconds = stage_seconds(fleet, partition.order, partition.counts)
    share = f"{seconds[index] * 1000:.1f} ms a step, the slowest stage takes {max(seconds) * 1000:.1f} ms"
    if count == room:
        return f"{has}, room for {room} layers: {held}; {share}"
    return f"{has} and takes {fleet.layer_s[i] * 1000:.2f} ms a layer: {held}; {share}"


def plan_reasons(
    choice: Choice,
    stages: Sequence[PlannedStage],
    standbys: Sequence[PlannedStage],
    predicted: Prediction,
    kv_tokens: int,
) -> tuple[str, ...]:
    """Return the reasons for the plan as a whole, then one for each machine that is not in the pipeline."""
    task, precision = choice.task, choice.precision
    weights_mib = task.card.total_bytes(precision) / 2**20
    reasons = [
        f"{task.name} in {precision}: {weights_mib:.0f} MiB of weights on {len(stages)} node(s)",
        f"KV cache for {kv_tokens} tokens, {task.slots} sequences at once",
        f"predicted: {predicted.token_s * 1000:.1f} ms a token for one stream, "
        f"{predicted.tokens_per_s:.1f} tokens/s with {predicted.streams} streams",
    ]
    if task.context_tokens < task.card.context_tokens:
        reasons.append(_context(choice))
    if predicted.assumed:
        reasons.append(f"not measured yet, so assumed: {', '.join(predicted.assumed)}")
    if stages[0].spec.wire == "int8":
        reasons.append("rows travel in int8 blocks, because the stages would otherwise wait for a link")
    reasons += [*_gain(choice), *_whole(choice), *_left_out(choice), *(standby.reason for standby in standbys)]
    return tuple(reasons)


def _context(choice: Choice) -> str:
    task = choice.task
    limited = f"contexts of up to {task.context_tokens} of the model's {task.card.context_tokens} tokens"
    if task.context_tokens == task.context_requested:
        return f"{limited}, as set in cluster.context_tokens"
    return f"{limited}: longer ones would not fit in {choice.precision}"


def _gain(choice: Choice) -> list[str]:
    """Return how much faster this partition is than layers in proportion to memory."""
    partition, fleet = choice.partition, choice.fleet
    limits = caps(fleet, partition.order)
    if len(partition.order) == 1:
        return []
    weights = [choice.candidates.usable_bytes(i) for i in partition.order]
    counts = proportional(fleet.layers, weights, limits)
    if counts == partition.counts:
        return []
    gain = cost_s(fleet, partition.order, counts) / partition.cost_s - 1
    layers = "-".join(map(str, counts))
    return [f"{100 * gain:.0f} % faster than layers in proportion to memory ({layers})"]


def proportional(layers: int, weights: Sequence[int], limits: Sequence[int]) -> tuple[int, ...]:
    """Return shares of `layers` by weight (largest remainder), each at least one and at most `limits[i]`."""
    shares = [1] * len(weights)
    total = sum(weights) or 1
    for _ in range(layers - len(weights)):
        # The machine furthest below its ideal share takes the next layer; a full one takes none.
        behind = [
            layers * weight / total - share if share < limit else float("-inf")
            for weight, share, limit in zip(weights, shares, limits, strict=True)
        ]
        shares[behind.index(max(behind))] += 1
    return tuple(shares)


def _whole(choice: Choice) -> list[str]:
    """Return why a model on one machine is not split."""
    if not choice.is_alone or choice.fleet.size == 1:
        return []
    name = choice.pipeline_members[0].name
    return [f"{name} holds the whole model, so it is not split: others can serve copies of it"]


def _left_out(choice: Choice) -> list[str]:
    candidates, partition = choice.candidates, choice.partition
    reasons = [f"{member.name} is left out: {reason}" for member, reason in choice.refused]
    for i, member in enumerate(candidates.members):
        if i not in partition.order:
            reasons.append(f"{member.name} is left out: {_why_out(choice, i)}")
    return reasons


def _why_out(choice: Choice, i: int) -> str:
    fleet, partition = choice.fleet, choice.partition
    usable_mib = choice.candidates.usable_bytes(i) / 2**20
    if max(fleet.rooms[i]) < 1 or (not choice.is_alone and max(fleet.rooms[i][:ALONE]) < 1):
        needed = choice.candidates.needs(i).stage_bytes(0, 1, choice.kv_tokens) / 2**20
        return f"{usable_mib:.0f} MiB usable, no room for a layer, which takes about {needed:.0f} MiB"
    if choice.is_alone:
        return f"{choice.pipeline_members[0].name} holds the whole model"
    if len(partition.order) >= fleet.layers:
        return f"{usable_mib:.0f} MiB usable, but the model has only {fleet.layers} layers"
    with_it = _with(fleet, partition, i)
    if with_it is None:
        return f"{usable_mib:.0f} MiB usable, no room for a layer at its place in the pipeline"
    return (
        f"the pipeline would be slower, {_speed(choice, with_it)} with it and {_speed(choice, partition)} without"
    )


def _with(fleet: Fleet, partition: Partition, i: int) -> Partition | None:
    """Return the best pipeline with this machine somewhere in it, the others' order unchanged."""
    places = range(1 if fleet.first is not None else 0, len(partition.order) + 1)
    if fleet.size > 32:  # Among many machines, try only the middle place.
        places = range(max(1, len(partition.order) // 2), max(1, len(partition.order) // 2) + 1)
    orders = ((*partition.order[:at], i, *partition.order[at:]) for at in places)
    partitions = [better for order in orders if (better := best_partition(fleet, order, 20))]
    return min(partitions, key=lambda candidate: candidate.cost_s, default=None)


def _speed(choice: Choice, partition: Partition) -> str:
    if choice.fleet.in_flight:
        return f"{choice.task.streams / partition.cost_s:.1f} tokens/s"
    return f"{partition.cost_s * 1000:.1f} ms a token"
