"""The ways to serve a model, each with whether it is possible, and its predicted figures."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cluster.errors import ModelDoesNotFit
from cluster.models.layer_cost import QUANTIZED, Precision
from cluster.models.model_card import ModelCard
from cluster.plans.needs import context_room
from cluster.plans.plan import Plan, plan_stages
from gateway.advice.break_even import own_nano_per_mtok
from gateway.advice.question import AdviceQuestion

Kind = Literal["one machine", "quantize", "cluster", "pool", "cloud"]

OWN: tuple[Kind, ...] = ("one machine", "quantize", "cluster")

_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class ServingOption:
    """`is_open` is whether it is possible now; `why` says so in a sentence, with the remedy if it is not.

    Sizes are for the weights and one full context. Times are predictions, `assumed` lists those not measured.
    `nano_per_mtok` is the cost of a million tokens in the question's mix: power, or the provider's price.
    """

    kind: Kind
    is_open: bool
    why: str
    machines: tuple[str, ...] = ()
    precision: Precision | None = None
    needed_bytes: int | None = None
    usable_bytes: int | None = None
    context_tokens: int | None = None
    token_s: float | None = None
    tokens_per_s: float | None = None
    first_token_s: float | None = None
    nano_per_mtok: int | None = None
    assumed: tuple[str, ...] = ()
    plan: Plan | None = None


def own_ways(question: AdviceQuestion) -> tuple[tuple[ServingOption, ...], Kind | None]:
    """Return one machine, one machine with lower precision, and several; and which of them the cluster would
    choose.

    Each has the highest precision that fits, or the planner's choice.
    """
    card = question.card
    if card is None:
        why = "its shape is unknown: name a folder, a GGUF file or a Hugging Face ID"
        return tuple(ServingOption(kind, False, why) for kind in OWN), None
    found: dict[Kind, Plan] = {}
    chosen = _plan(question, card, question.precision, question.stages_min)
    if chosen:
        found[_kind(chosen)] = chosen
    for plan in _plans(question, card):
        found.setdefault(_kind(plan), plan)
    if "cluster" not in found and (split := _split(question, card)):
        found["cluster"] = split
    ways = tuple(_own(question, card, kind, found.get(kind)) for kind in OWN)
    return ways, _kind(chosen) if chosen else None


def _kind(plan: Plan) -> Kind:
    if len(plan.stages) > 1:
        return "cluster"
    return "quantize" if plan.precision in QUANTIZED else "one machine"


def needed_bytes(question: AdviceQuestion, card: ModelCard, precision: Precision) -> int:
    """Return the bytes of weights and the KV cache of one full context on one machine."""
    wished = min(question.context_tokens or card.context_tokens, card.context_tokens)
    token_bytes = sum(card.kv_bytes_per_token(precision, layer) for layer in range(card.layers))
    return card.total_bytes(precision) + context_room(wished) * token_bytes


def _plans(question: AdviceQuestion, card: ModelCard) -> Iterator[Plan]:
    """Yield the plan for each precision, the highest first, on as few machines as possible."""
    for precision in _precisions(question):
        if plan := _plan(question, card, precision, 1):
            yield plan


def _split(question: AdviceQuestion, card: ModelCard) -> Plan | None:
    """Return a plan over several machines although fewer would do."""
    if len(question.members) < 2:
        return None
    for precision in _precisions(question):
        plan = _plan(question, card, precision, 2)
        if plan and len(plan.stages) > 1:
            return plan
    return None


def _precisions(question: AdviceQuestion) -> tuple[Precision, ...]:
    """Return the precisions to try. fp32 is left out if a GPU takes part, unless it is pinned."""
    if question.precision:
        return (question.precision,)
    on_cpus = all(member.machine.device.kind == "cpu" for member in question.members)
    return _PRECISIONS if on_cpus else _PRECISIONS[1:]


def _plan(question: AdviceQuestion, card: ModelCard, precision: Precision | None, stages_min: int) -> Plan | None:
    """Return a plan; the planner chooses the precision if none is given."""
    try:
        return plan_stages(
            question.name,
            card,
            question.members,
            precision=precision,
            slots=question.slots,
            context_tokens=question.context_tokens,
            network=question.network,
            goal=question.goal,
            stages_min=stages_min,
        )
    except ModelDoesNotFit:
        return None


def _own(question: AdviceQuestion, card: ModelCard, kind: Kind, plan: Plan | None) -> ServingOption:
    if plan is None:
        return _closed(question, card, kind)
    predicted = plan.predicted
    assert predicted is not None, "every new plan has its forecast"
    names = tuple(stage.member.name for stage in plan.stages)
    return ServingOption(
        kind,
        True,
        f"{', '.join(names)} at {plan.precision}",
        machines=names,
        precision=plan.precision,
        needed_bytes=needed_bytes(question, card, plan.precision),
        usable_bytes=sum(stage.member.machine.memory_usable_bytes for stage in plan.stages),
        context_tokens=plan.context_tokens,
        token_s=predicted.token_s,
        tokens_per_s=predicted.tokens_per_s,
        first_token_s=predicted.first_token_s,
        nano_per_mtok=own_nano_per_mtok(question.cost, len(names), predicted),
        assumed=predicted.assumed,
        plan=plan,
    )


def _closed(question: AdviceQuestion, card: ModelCard, kind: Kind) -> ServingOption:
    sizes = [member.machine.memory_usable_bytes for member in question.members]
    if not sizes:
        return ServingOption(kind, False, "the cluster has no machine; add one with `millrace token create`")
    if kind == "cluster" and len(sizes) < 2:
        return ServingOption(kind, False, "there is only one machine; add another with `millrace token create`")
    if kind != "cluster" and question.precision and (question.precision in QUANTIZED) != (kind == "quantize"):
        return ServingOption(kind, False, f"cluster.precision is set to {question.precision}")
    # The lowest precision that would do.
    precision = question.precision or ("bf16" if kind == "one machine" else "int4")
    needed = needed_bytes(question, card, precision)
    have = sum(sizes) if kind == "cluster" else max(sizes)
    where = "all machines together have" if kind == "cluster" else "the largest machine has"
    short = f", {gib(needed - have)} short" if needed > have else ", too little with activation memory"
    why = f"{gib(needed)} needed at {precision}; {where} {gib(have)} available{short}"
    return ServingOption(kind, False, why, precision=precision, needed_bytes=needed, usable_bytes=have)


def gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
