"""Layer placement over machines: complete, in order, within memory, as fast as possible, with reasons."""

import random
import re
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from cluster import wire
from cluster.control.deployment import Deployment, Model
from cluster.control.fault_attribution import FaultAttribution
from cluster.control.loaded_stages import LoadedStages
from cluster.control.next_plan import Planning, PlanOptions
from cluster.control.recovery import with_copies
from cluster.control.roster import Roster
from cluster.errors import ModelDoesNotFit
from cluster.machine import Device, Machine, Pace, Speed
from cluster.models.manifest import Manifest
from cluster.models.model_card import ModelCard, Precision, Rope
from cluster.plans.needs import CONTEXT_TOKENS_MIN
from cluster.plans.network import Link, Network
from cluster.plans.plan import BLOCK_TOKENS, Goal, Member, Pin, Plan, plan_stages
from cluster.plans.plan_changes import explain_change, is_worth
from cluster.plans.replicas import with_standby
from cluster.trust.authority import Authority
from cluster.trust.identity import NodeId
from tests.examples import examples

GIB = 2**30
QUICK, SLOW = 0.1e-3, 1e-3


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


def paced(per_million_s: float, precisions: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")) -> Pace:
    """Return a pace of this many seconds per million weights at one row, and sixty times as many at 256."""
    speed = Speed((1, 256), (per_million_s, 60 * per_million_s))
    return Pace(speeds=dict.fromkeys(precisions, speed), dispatch_s=1e-4, memory_bytes_per_s=10e9)


def member(number: int, gib: float, device: str = "cpu", pace: Pace | None = None) -> Member:
    machine = Machine(
        system="Linux",
        architecture="x86_64",
        cores=8,
        memory_total_bytes=int(gib * GIB),
        memory_usable_bytes=int(gib * GIB),
        device=Device(device, device, int(gib * GIB)),
        pace=pace or Pace(),
    )
    return Member(NodeId(f"{number:032x}"), f"node-{number}", machine)


def counts(plan: Plan) -> list[int]:
    return [stage.spec.end_layer - stage.spec.first_layer for stage in plan.stages]


def names(plan: Plan) -> list[str]:
    return [stage.member.name for stage in plan.stages]


def check_plan(plan: Plan, model: ModelCard) -> None:
    """Assert the properties of every plan."""
    ends = [stage.spec.end_layer for stage in plan.stages]
    assert [stage.spec.first_layer for stage in plan.stages] == [0, *ends[:-1]]
    assert ends[-1] == model.layers
    assert len(set(plan.pipeline)) == len(plan.pipeline)
    assert min(model.context_tokens, CONTEXT_TOKENS_MIN) <= plan.context_tokens <= model.context_tokens
    assert plan.kv_blocks * BLOCK_TOKENS >= plan.context_tokens, "the KV cache is smaller than one context"
    for stage, layers in zip(plan.stages, counts(plan), strict=True):
        assert layers > 0
        assert stage.member.name in stage.reason
        tokens = plan.kv_blocks * BLOCK_TOKENS
        row_bytes = 0 if stage.spec.is_last else model.hidden * (4 if plan.precision == "fp32" else 2)
        kv_bytes = tokens * (layers * model.kv_bytes_per_token(plan.precision) + row_bytes)
        assert 0 < stage.weight_bytes + kv_bytes <= stage.member.machine.memory_usable_bytes
    held: dict[NodeId, int] = {}
    for copy in plan.standbys:
        assert copy.member.node_id not in plan.pipeline
        assert copy.spec in [stage.spec for stage in plan.stages]
        held[copy.member.node_id] = held.get(copy.member.node_id, 0) + copy.weight_bytes
        assert held[copy.member.node_id] <= copy.member.machine.memory_usable_bytes


@settings(deadline=None, max_examples=examples(15, 40))
@given(
    machines=st.lists(
        st.tuples(st.floats(0.1, 64), st.sampled_from([QUICK, 3e-4, SLOW])), min_size=1, max_size=14
    ),
    layers=st.integers(1, 80),
    tied=st.booleans(),
    context=st.integers(1, 9000),
    goal=st.sampled_from(["latency", "throughput"]),
    stages_min=st.integers(1, 14),
)
def test_any_fleet_gets_a_sound_plan_or_a_reason(
    machines: list[tuple[float, float]], layers: int, tied: bool, context: int, goal: Goal, stages_min: int
) -> None:
    model = card(layers=layers, tied=tied, context=context)
    members = [member(number, gib, pace=paced(pace)) for number, (gib, pace) in enumerate(machines)]
    try:
        plan = plan_stages("m", model, members, goal=goal, stages_min=stages_min)
    except ModelDoesNotFit as error:
        assert error.needed_bytes > error.usable_bytes
        assert "short" in str(error)
        return
    check_plan(plan, model)
    left_out = [m.name for m in members if m.node_id not in plan.pipeline]
    assert all(any(f"{name} is left out" in reason for reason in plan.reasons) for name in left_out)
    assert plan.predicted
    assert plan.predicted.token_s > 0


def test_a_model_that_fits_one_machine_is_not_split_unless_asked_for() -> None:
    members = [member(1, 48, pace=paced(SLOW)), member(2, 48, pace=paced(QUICK))]
    assert names(plan_stages("m", card(), members)) == ["node-2"]
    assert len(plan_stages("m", card(), members, stages_min=2).stages) == 2


def test_layers_follow_speed_and_the_gain_over_memory_is_told() -> None:
    members = [member(1, 48, pace=paced(SLOW)), member(2, 24, pace=paced(SLOW / 3))]
    plan = plan_stages("m", card(), members, stages_min=2, precision="bf16")
    few, many = counts(plan)
    assert 2.6 < many / few < 3.4
    assert any("% faster than layers in proportion to memory" in reason for reason in plan.reasons)


def test_a_machine_with_little_room_gets_what_fits() -> None:
    plan = plan_stages("m", card(), [member(1, 60), member(2, 2.2)], precision="bf16", stages_min=2)
    check_plan(plan, card())
    small = next(stage for stage in plan.stages if stage.member.name == "node-2")
    assert small.spec.end_layer - small.spec.first_layer <= 4
    assert "room for" in small.reason


def test_a_machine_that_would_slow_the_pipeline_is_left_out_with_both_figures() -> None:
    members = [*(member(n, 14, pace=paced(QUICK)) for n in (1, 2, 3)), member(4, 14, pace=paced(50 * SLOW))]
    plan = plan_stages("m", card(), members, precision="fp32")
    assert set(names(plan)) == {"node-1", "node-2", "node-3"}
    reason = next(reason for reason in plan.reasons if reason.startswith("node-4"))
    assert reason.count("tokens/s") == 2


def test_a_far_machine_is_worth_its_link_only_where_it_is_needed() -> None:
    members = [member(n, 14, pace=paced(QUICK)) for n in (1, 2, 3, 4)]
    far = Link(delay_s=0.5, bytes_per_s=1e6)
    links = {(a.node_id, b.node_id): far for a in members for b in members if "node-4" in (a.name, b.name)}
    plan = plan_stages("m", card(), members, precision="fp32", network=Network(links), goal="latency")
    assert "node-4" not in names(plan)
    needed = plan_stages("m", card(), [members[0], members[3]], precision="fp32", network=Network(links))
    assert set(names(needed)) == {"node-1", "node-4"}


def test_the_coordinator_stays_on_its_machine_if_that_costs_little() -> None:
    members = [member(n, 14) for n in (1, 2, 3)]
    plan = plan_stages("m", card(), members, precision="fp32", stages_min=3, coordinator=members[2].node_id)
    assert names(plan)[0] == "node-3"


def test_precision_is_the_widest_that_fits() -> None:
    assert plan_stages("m", card(), [member(1, 64)]).precision == "fp32"
    assert plan_stages("m", card(), [member(1, 20)]).precision == "bf16"
    assert plan_stages("m", card(), [member(1, 64, "cuda")]).precision == "bf16"
    assert plan_stages("m", card(), [member(1, 9)]).precision == "int8"
    assert plan_stages("m", card(), [member(1, 5.5)]).precision == "int4"


def test_a_long_context_is_shortened_before_the_precision_is() -> None:
    long = card(context=131_072)
    plan = plan_stages("m", long, [member(1, 40)])
    check_plan(plan, long)
    assert plan.precision == "fp32"
    assert 4096 <= plan.context_tokens < 131_072
    assert any(f"contexts of up to {plan.context_tokens} of the model's 131072" in r for r in plan.reasons)
    roomy = plan_stages("m", long, [member(1, 200)])
    assert roomy.context_tokens == 131_072
    assert is_worth(plan, roomy)
    assert plan_stages("m", long, [member(1, 4.6)]).context_tokens < 4096, "there is nothing narrower than int4"


def test_a_context_that_is_set_stays_and_is_named_where_it_does_not_fit() -> None:
    long = card(context=131_072)
    plan = plan_stages("m", long, [member(1, 64)], context_tokens=1000)
    assert (plan.precision, plan.context_tokens) == ("fp32", 1000)
    assert any("as set in cluster.context_tokens" in reason for reason in plan.reasons)
    assert plan_stages("m", card(), [member(1, 64)], context_tokens=131_072).context_tokens == 4096
    with pytest.raises(ModelDoesNotFit, match=r"set cluster\.context_tokens to \d+ instead of 65536"):
        plan_stages("m", long, [member(1, 36)], precision="fp32", context_tokens=65_536)


def test_bf16_that_is_slower_than_int8_is_not_chosen_on_cpus() -> None:
    pace = Pace(speeds={**paced(SLOW).speeds, "int8": paced(QUICK).speeds["int8"]})
    assert plan_stages("m", card(), [member(1, 20, pace=pace)]).precision == "int8"
    assert plan_stages("m", card(), [member(1, 20, pace=pace)], precision="bf16").precision == "bf16"


def test_a_machine_that_cannot_compute_in_the_pinned_precision_is_not_placed() -> None:
    broken = changed(
        paced(QUICK), speeds={**paced(QUICK).speeds, "int8": Speed(is_usable=False, reason="sums overflow")}
    )
    plan = plan_stages(
        "m", card(), [member(1, 64, pace=broken), member(2, 64, pace=paced(SLOW))], precision="int8"
    )
    assert names(plan) == ["node-2"]
    assert "node-1 is left out: sums overflow" in plan.reasons


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would_help() -> None:
    with pytest.raises(
        ModelDoesNotFit, match=r"m at bf16 needs 1\d\.\d\d GiB, but the machines have 8\.00 GiB"
    ) as told:
        plan_stages("m", card(), [member(1, 4), member(2, 4)], precision="bf16")
    assert "choose int8" in str(told.value)
    with pytest.raises(ModelDoesNotFit, match=r"m at int4 needs .* add a machine with \d"):
        plan_stages("m", card(), [member(1, 2), member(2, 1)])


def test_never_more_stages_than_layers() -> None:
    plan = plan_stages("m", card(layers=2, hidden=512), [member(n, 8 + n) for n in range(5)], stages_min=5)
    assert len(plan.stages) == 2


def test_layers_of_unequal_size_stay_within_memory() -> None:
    """Most weights are in the last layers, so an average layer is not enough."""
    model = replace(card(layers=8, hidden=1024), path="compat")
    costs = [card(hidden=512).layer_cost()] * 6 + [card(hidden=4096).layer_cost()] * 2
    model = replace(model, layer_costs=tuple(costs))
    plan = plan_stages(
        "m", model, [member(1, 1.6), member(2, 1.6), member(3, 1.6)], precision="fp32", stages_min=2
    )
    for stage in plan.stages:
        ends = (stage.spec.first_layer, stage.spec.end_layer)
        layers_bytes = sum(model.layer_bytes("fp32", layer) for layer in range(*ends))
        assert layers_bytes < stage.weight_bytes + 1 <= stage.member.machine.memory_usable_bytes


def test_owners_keep_the_ends_of_a_pinned_model() -> None:
    mine, theirs = [member(n, 6) for n in (1, 2)], [member(n, 24, "cuda") for n in (3, 4)]
    pin = Pin(frozenset(m.node_id for m in mine), first_layers=3, last_layers=2)
    plan = plan_stages("m", card(), [*theirs, *mine], precision="bf16", stages_min=4, pin=pin)
    check_plan(plan, card())
    assert {names(plan)[0], names(plan)[-1]} == {"node-1", "node-2"}
    assert plan.stages[0].spec.end_layer >= 3
    assert plan.stages[-1].spec.first_layer <= 30
    with pytest.raises(ModelDoesNotFit, match="owners"):
        plan_stages("m", card(), [*theirs, mine[0]], precision="fp32", pin=pin)


def test_no_third_party_holds_a_copy_of_an_owners_layers() -> None:
    """A middle stage may reach into the last layers that are the owners'."""
    owners = frozenset(m.node_id for m in (member(1, 13), member(2, 13), member(3, 13)))
    partition = plan_stages("m", card(), [member(n, 13) for n in (1, 2, 3)], precision="fp32", stages_min=3)
    spare = [member(4, 64)]
    last_layers = card().layers - partition.stages[1].spec.end_layer

    def copied(last_layers: int) -> set[int]:
        pin = Pin(owners, first_layers=1, last_layers=last_layers)
        return {copy.spec.index for copy in with_copies(partition, card(), spare, Network(), pin).standbys}

    assert copied(last_layers) == {1}
    assert copied(last_layers + 1) == set()


def test_standbys_are_no_need_of_memory(tmp_path: Path) -> None:
    members = [member(n, 40) for n in (1, 2)]
    alone = plan_stages("m", card(), members[:1], precision="fp32")
    plan = changed(alone, standbys=with_copies(alone, card(), members[1:], Network(), None).standbys)
    subscription = Roster(Authority.open(tmp_path), lambda *_: (b"", 0)).subscribe("a")
    attribution = FaultAttribution(subscription.membership)
    planning = Planning(subscription, PlanOptions(), attribution, LoadedStages(), list)
    model = Model("m", tmp_path, Manifest(name="m", config={}, files={}, tensors={}), card())
    claim = planning.claim(model, "m", Deployment(1, plan, wire.Address(NodeId("1"), "", 0), 0.0))
    assert claim.serving
    used, spare = (claim.serving[m.node_id] for m in members)
    assert used.planned_bytes >= used.least_bytes > 0
    assert spare.planned_bytes > spare.least_bytes == 0


def test_spare_machines_hold_copies_and_one_takes_over() -> None:
    members = [member(n, 13, pace=paced(QUICK)) for n in (1, 2)] + [
        member(n, 13, pace=paced(SLOW)) for n in (3, 4)
    ]
    plan = plan_stages("m", card(layers=24), members, precision="fp32")
    check_plan(plan, card(layers=24))
    assert {copy.spec.index for copy in plan.standbys} == {0, 1}
    lost = plan.pipeline[1]
    after = with_standby(plan, lost)
    assert after
    assert lost not in after.pipeline
    assert [stage.spec for stage in after.stages] == [stage.spec for stage in plan.stages]
    assert with_standby(plan, lost, frozenset()) is None, "no machine has loaded its copy"


def test_rows_are_compressed_only_where_a_measured_link_is_the_bottleneck() -> None:
    members = [member(n, 40, "cuda") for n in (1, 2)]

    def wire(rate: float, precision: Precision) -> str:
        link = Link(delay_s=0.001, bytes_per_s=rate)
        network = Network({(a.node_id, b.node_id): link for a in members for b in members})
        plan = plan_stages("m", card(), members, precision=precision, stages_min=2, network=network)
        return plan.stages[0].spec.wire

    assert wire(1e6, "bf16") == "int8"
    assert wire(1e6, "fp32") == "fp32"
    assert wire(1e9, "bf16") == "bf16"
    assert plan_stages("m", card(), members, precision="bf16", stages_min=2).stages[0].spec.wire == "bf16"


def test_a_working_pipeline_is_replaced_for_a_loss_or_a_real_gain_only() -> None:
    members = [member(n, 14, pace=paced(SLOW)) for n in (1, 2, 3)]
    now = plan_stages("m", card(), members, precision="fp32")
    greatly = [*members, *(member(n, 14, pace=paced(QUICK)) for n in (4, 5, 6))]
    better = plan_stages("m", card(), greatly, precision="fp32")
    assert is_worth(now, better)
    assert is_worth(now, plan_stages("m", card(), greatly[1:], precision="fp32")), "a machine is lost"
    assert is_worth(now, plan_stages("m", card(), members, precision="bf16")), "the operator wants it"
    assert not is_worth(now, now)
    assert now.predicted
    for gain, worth in ((1.1, False), (1.2, True)):
        predicted = changed(now.predicted, tokens_per_s=gain * now.predicted.tokens_per_s)
        assert is_worth(now, changed(better, predicted=predicted, kv_blocks=now.kv_blocks)) == worth
    rest = plan_stages("m", card(), members[1:], precision="fp32")
    assert "node-1: gone (had layers 0-10)" in explain_change(now, rest)
    assert "node-1: removed (had layers 0-10)" in explain_change(now, rest, {members[0].node_id})
    assert rest.predicted
    slower = changed(rest, predicted=changed(rest.predicted, tokens_per_s=0.61 * now.predicted.tokens_per_s))
    assert explain_change(now, slower)[-1] == (
        "replaces the pipeline: a machine of the pipeline no longer takes part, at 39 % less speed"
    )
    text = "\n".join(explain_change(now, better))
    assert re.search(r"replaces the pipeline: it is predicted to be \d+ % faster$", text)
    assert "node-1: out of the pipeline (had layers 0-" in text
    assert "new in the pipeline" in text


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_stages_predicted_time_is_the_sum_of_its_parts(precision: Precision) -> None:
    """Thirty-two layers at c0 + weights + attention, by hand."""
    model = card()
    plan = plan_stages("m", model, [member(1, 64, pace=paced(QUICK))], precision=precision)
    assert plan.predicted
    layer_s = 1e-4 + QUICK * model.layer_cost().matrix_values / 1e6
    attention_s = 0.7e-4 + 512 * model.kv_bytes_per_token("fp32") / (0.45 * 10e9)
    logits_s = QUICK * model.vocabulary * model.hidden / 1e6
    assert plan.predicted.token_s == pytest.approx(32 * (layer_s + attention_s) + logits_s, rel=0.01)
    assert not plan.predicted.assumed


def test_impossible_figures_of_peers_are_not_used() -> None:
    odd = Pace(
        speeds={"fp32": Speed((1, 2), (float("nan"), -1.0)), "bf16": Speed((0,), ())},
        dispatch_s=float("inf"),
        memory_bytes_per_s=-1,
    )
    plan = plan_stages("m", card(), [member(1, 20, pace=odd), member(2, 20)], precision="fp32", stages_min=2)
    check_plan(plan, card())
    assert plan.predicted
    assert 0 < plan.predicted.token_s < 1e3


def test_machines_in_the_same_order_make_the_same_plan() -> None:
    chance = random.Random(5)
    members = [member(n, chance.uniform(6, 16), pace=paced(chance.uniform(QUICK, SLOW))) for n in range(6)]
    plans = [plan_stages("m", card(), members) for _ in range(2)]
    assert plans[0] == plans[1]
    assert list(accumulate(counts(plans[0]))) == [stage.spec.end_layer for stage in plans[0].stages]
