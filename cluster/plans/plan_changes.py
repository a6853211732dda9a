"""A comparison of two plans: whether the new one justifies a new pipeline, and what it would change, in words."""

from collections.abc import Set as AbstractSet

from cluster.plans.planned import Plan, PlannedStage
from cluster.trust.identity import NodeId

# Below this share a new pipeline costs more than it gains. Measurements vary by half as much.
_GAIN_MIN = 0.15
_KV_GAIN_MIN = 1.0


def is_worth(now: Plan, new: Plan) -> bool:
    """Tell whether `new` should replace `now`, which serves."""
    return why_worth(now, new) is not None


def why_worth(now: Plan, new: Plan) -> str | None:
    """Return why `new` should replace `now`, which serves; None if it should not.

    It always should if a machine of the pipeline no longer takes part, or if there is room for longer contexts
    now. It also should if the operator's options change: precision, number of sequences, goal, more stages.
    Otherwise it needs a predicted gain of more than 15 %, or more than twice the room for sequences at no loss.
    """
    lost = set(now.pipeline) - set(new.considered)
    is_reconfigured = (new.precision, new.slots, new.goal) != (now.precision, now.slots, now.goal)
    is_longer = new.context_tokens > now.context_tokens
    if lost:
        return "a machine of the pipeline no longer takes part"
    if is_reconfigured:
        return "the precision, the number of sequences or the goal changes"
    if is_longer:
        return "it has room for longer contexts"
    if len(now.stages) < min(new.stages_min, len(new.stages)):
        return "more stages are wanted"
    if new.layer_placement == now.layer_placement:
        return None
    gain = gain_of(now, new)
    if gain > _GAIN_MIN:
        return f"it is predicted to be {100 * gain:.0f} % faster"
    has_room = gain >= 0 and new.kv_blocks > (1 + _KV_GAIN_MIN) * now.kv_blocks
    return "it has more than twice the room for sequences" if has_room else None


def gain_of(now: Plan, new: Plan) -> float:
    """Return the predicted speed gain of the new plan by its goal, as a share; 0 without a prediction."""
    if now.predicted is None or new.predicted is None:
        return 0.0
    if new.goal == "latency":
        return now.predicted.token_s / new.predicted.token_s - 1
    return new.predicted.tokens_per_s / now.predicted.tokens_per_s - 1


def explain_change(old: Plan, new: Plan, left_out: AbstractSet[NodeId] = frozenset()) -> tuple[str, ...]:
    """Return the change in words, machine by machine, for admins who check it first.

    Machines `left_out` are there, but the new plan must not use them.
    """
    lines = []
    before = {stage.member.node_id: stage for stage in old.stages}
    after = {stage.member.node_id: stage for stage in new.stages}
    for node_id, was in before.items():
        fate = _fate(was, after[node_id]) if node_id in after else _exit(was, new, left_out)
        lines.append(f"{was.member.name}: {fate}")
    for node_id, stage in after.items():
        if node_id not in before:
            lines.append(f"{stage.member.name}: new in the pipeline with {_layers(stage)}")
    if old.precision != new.precision:
        lines.append(f"precision: {old.precision} becomes {new.precision}")
    if old.context_tokens != new.context_tokens:
        lines.append(f"longest context: {old.context_tokens} tokens become {new.context_tokens}")
    if old.kv_blocks != new.kv_blocks:
        lines.append(f"KV cache: {old.kv_blocks} blocks become {new.kv_blocks}")
    if old.predicted and new.predicted:
        past, soon = old.predicted, new.predicted
        lines += [
            f"one stream: {past.token_s * 1000:.1f} ms a token become {soon.token_s * 1000:.1f} ms",
            f"{soon.streams} streams: {past.tokens_per_s:.1f} tokens/s become {soon.tokens_per_s:.1f}",
        ]
    lines.append(_verdict(old, new))
    return tuple(lines)


def _verdict(old: Plan, new: Plan) -> str:
    why, gain = why_worth(old, new), gain_of(old, new)
    if why is None:
        return "not recommended: the gain is less than 15 %"
    return f"replaces the pipeline: {why}" + (f", at {-100 * gain:.0f} % less speed" if round(gain, 2) < 0 else "")


def _exit(was: PlannedStage, new: Plan, left_out: AbstractSet[NodeId]) -> str:
    node_id = was.member.node_id
    if node_id in left_out:
        return f"removed (had {_layers(was)})"
    return ("out of the pipeline" if node_id in new.considered else "gone") + f" (had {_layers(was)})"


def _fate(was: PlannedStage, will: PlannedStage) -> str:
    return f"{_layers(was)}, unchanged" if will.spec == was.spec else f"{_layers(was)} become {_layers(will)}"


def _layers(stage: PlannedStage) -> str:
    return f"layers {stage.spec.first_layer}-{stage.spec.end_layer - 1}"
