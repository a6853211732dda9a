"""Cutting layers over machines: complete, in order, within memory, in proportion, with reasons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ModelDoesNotFit
from cluster.identity import NodeId
from cluster.model_card import ModelCard, Rope
from cluster.plan import BLOCK_TOKENS, Member, Plan, plan_stages
from cluster.probe import Device, Machine

GIB = 2**30


def card(layers: int = 32, hidden: int = 4096, tied: bool = False, context: int = 4096) -> ModelCard:
    return ModelCard(
        family="llama",
        vocabulary=32_000,
        hidden=hidden,
        intermediate=hidden * 11 // 4,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=hidden // 32,
        context_tokens=context,
        norm_epsilon=1e-5,
        rope=Rope(10_000.0),
        tied_embeddings=tied,
        attention_bias=False,
        mlp_bias=False,
    )


def member(number: int, gib: float, device: str = "cpu") -> Member:
    machine = Machine(
        system="Linux",
        architecture="x86_64",
        cores=8,
        memory_total_bytes=int(gib * GIB),
        memory_usable_bytes=int(gib * GIB),
        device=Device(device, device, int(gib * GIB)),
    )
    return Member(NodeId(f"{number:032x}"), f"node-{number}", machine)


def check_plan(plan: Plan, model: ModelCard) -> None:
    """What must hold for any plan whatever."""
    ends = [stage.spec.end_layer for stage in plan.stages]
    assert [stage.spec.first_layer for stage in plan.stages] == [0, *ends[:-1]]
    assert ends[-1] == model.layers
    assert plan.kv_blocks * BLOCK_TOKENS >= model.context_tokens, "one sequence could wait for room for ever"
    for stage in plan.stages:
        assert stage.spec.end_layer > stage.spec.first_layer
        assert stage.member.name in stage.reason
        layers = stage.spec.end_layer - stage.spec.first_layer
        kv_bytes = plan.kv_blocks * BLOCK_TOKENS * layers * model.kv_bytes_per_token(plan.precision)
        assert 0 < stage.weight_bytes + kv_bytes <= stage.member.machine.memory_usable_bytes


@given(
    sizes=st.lists(st.floats(0.1, 64), min_size=1, max_size=12),
    layers=st.integers(1, 80),
    tied=st.booleans(),
    context=st.integers(1, 9000),
)
def test_any_fleet_gets_a_sound_plan_or_a_reason(
    sizes: list[float], layers: int, tied: bool, context: int
) -> None:
    model = card(layers=layers, tied=tied, context=context)
    members = [member(number, gib) for number, gib in enumerate(sizes)]
    try:
        plan = plan_stages("m", model, members)
    except ModelDoesNotFit as error:
        assert error.needed_bytes > 0
        assert "short" in str(error)
        return
    check_plan(plan, model)
    planned = {stage.member.node_id for stage in plan.stages}
    left_out = [m.name for m in members if m.node_id not in planned]
    assert all(any(name in reason for reason in plan.reasons) for name in left_out)


def test_layers_follow_memory() -> None:
    plan = plan_stages("m", card(), [member(1, 48), member(2, 24), member(3, 24)])
    assert [stage.spec.end_layer - stage.spec.first_layer for stage in plan.stages] == [16, 8, 8]


def test_a_machine_with_little_room_gets_what_fits() -> None:
    model = card()
    plan = plan_stages("m", model, [member(1, 60), member(2, 3)], precision="bf16")
    check_plan(plan, model)
    assert plan.stages[1].spec.end_layer - plan.stages[1].spec.first_layer <= 4


def test_precision_is_the_widest_that_fits() -> None:
    model = card()
    assert plan_stages("m", model, [member(1, 64)]).precision == "fp32"
    assert plan_stages("m", model, [member(1, 20)]).precision == "bf16"
    assert plan_stages("m", model, [member(1, 64, "cuda")]).precision == "bf16"


def test_what_does_not_fit_says_by_how_much() -> None:
    with pytest.raises(ModelDoesNotFit, match=r"m at bf16 needs 1\d\.\d\d GiB, the machines have 4\.00 GiB"):
        plan_stages("m", card(), [member(1, 2), member(2, 2)])


def test_never_more_stages_than_layers() -> None:
    plan = plan_stages("m", card(layers=2, hidden=512), [member(n, 8 + n) for n in range(5)])
    assert len(plan.stages) == 2
    assert {stage.member.name for stage in plan.stages} == {"node-3", "node-4"}
