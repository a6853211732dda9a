"""Conclusions from reports: when a pipeline counts as stuck, which machine broke it, which standby replaces it."""

from dataclasses import dataclass, field

from cluster import wire
from cluster.control.deployment import Deployment
from cluster.control.fault_attribution import SETTLED_S, FaultAttribution
from cluster.control.membership import Membership
from cluster.control.quarantine import Quarantine
from cluster.control.recovery import stuck_at, with_stand_ins
from cluster.engine.running_pipeline import CRAWL_S, FIRST_STEP_S, LATE_S, Pipeline
from cluster.engine.scheduler import Scheduler
from cluster.engine.sequence import Sequence
from cluster.generation import SampledToken, Sampling
from cluster.machine import Device, Machine
from cluster.models.manifest import Manifest
from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import Member, Plan, PlannedStage
from cluster.trust.identity import NodeId

MACHINE = Machine(
    system="Linux",
    architecture="x86_64",
    cores=4,
    memory_total_bytes=2**34,
    memory_usable_bytes=2**33,
    device=Device("cpu", "", 0),
)


@dataclass(slots=True)
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def stage(name: str, index: int, stages: int = 3) -> PlannedStage:
    spec = StageSpec(
        index=index,
        stages=stages,
        first_layer=index,
        end_layer=index + 1,
        precision="fp32",
        context_tokens=512,
        kv_blocks=64,
        slots=4,
    )
    return PlannedStage(Member(NodeId(name), name, MACHINE), spec, 100, "")


def plan(*, standbys: tuple[PlannedStage, ...] = ()) -> Plan:
    stages = tuple(stage(name, index) for index, name in enumerate("abc"))
    return Plan(stages=stages, precision="fp32", kv_blocks=64, slots=4, reasons=(), standbys=standbys)


@dataclass(slots=True)
class ScriptedPipeline:
    """A pipeline whose stages answer when the test says so."""

    clock: Clock = field(default_factory=Clock)
    pipeline: Pipeline = field(init=False)

    def __post_init__(self) -> None:
        order = wire.AssignCoordinator(
            1, Manifest(name="m", config={}, files={}, tensors={}), "", NodeId("c"), 3, 512, 64, 4
        )
        self.pipeline = Pipeline(order, 100, Scheduler(1, 3, 4, 64), {0, 1, 2}, clock=self.clock)
        self.pipeline.close()
        self.pipeline.scheduler.add(Sequence([1, 2], 2, Sampling()))

    def send(self) -> wire.Step:
        frame = self.pipeline.next_frame()
        assert frame
        return frame[0]

    def answer(self, step: wire.Step, after_s: float) -> None:
        self.clock.now_s += after_s
        tokens = [SampledToken(7) for wanted in step.wanted if wanted]
        spent_ns = [int(after_s * 3e8)] * 3
        sampled = wire.Sampled(step.epoch, step.batch, tokens, [1] * len(tokens), spent_ns)
        assert len(list(self.pipeline.commit(sampled))) == len(tokens)


def test_a_pipeline_is_late_by_its_own_pace() -> None:
    scripted = ScriptedPipeline()
    step = scripted.send()
    scripted.clock.now_s += FIRST_STEP_S - 1
    assert not scripted.pipeline.lateness(), "the time of a step here is still unknown"
    scripted.answer(step, 0.0)
    for _ in range(20):
        scripted.answer(scripted.send(), 0.05)
    scripted.send()
    scripted.clock.now_s += LATE_S - 0.1
    assert not scripted.pipeline.lateness()
    scripted.clock.now_s += 0.2
    assert scripted.pipeline.lateness()
    scripted.pipeline.forgive()
    assert not scripted.pipeline.lateness()


def test_a_request_that_is_being_restored_can_be_the_cause_of_a_break() -> None:
    pipeline = ScriptedPipeline().pipeline
    sequence = Sequence([3] * 300, 300, Sampling())
    pipeline.scheduler.saved.learn(pipeline.scheduler.saved._names(sequence.block_hashes(256)))
    pipeline.scheduler.add(sequence)
    step, _ = pipeline.next_frame() or (None, b"")
    assert step
    assert step.restores
    assert pipeline.computing == {sequence}


def test_slow_machines_have_more_time() -> None:
    """With steps of half a second, two seconds are no reason to dismiss the pipeline."""
    scripted = ScriptedPipeline()
    for _ in range(20):
        scripted.answer(scripted.send(), 0.5)
    scripted.send()
    scripted.clock.now_s += 3.0
    assert not scripted.pipeline.lateness()
    scripted.clock.now_s += 3.0
    assert scripted.pipeline.lateness()


def test_a_crawling_pipeline_is_late_although_it_moves() -> None:
    scripted = ScriptedPipeline()
    for _ in range(20):
        scripted.answer(scripted.send(), 0.02)
    scripted.answer(scripted.send(), 0.7)
    for _ in range(40):
        scripted.answer(scripted.send(), 0.02)
    assert not scripted.pipeline.lateness(), "it has caught up"
    slow_s = 0.0
    while not scripted.pipeline.lateness():
        scripted.answer(scripted.send(), 0.7)
        scripted.answer(scripted.send(), 0.02)
        slow_s += 0.72
    assert CRAWL_S <= slow_s <= CRAWL_S + 0.72


def test_small_crawling_steps_are_detected_and_not_learned() -> None:
    scripted = ScriptedPipeline()
    for _ in range(40):
        scripted.answer(scripted.send(), 0.002)
    slow_s = 0.0
    while not scripted.pipeline.lateness():
        scripted.answer(scripted.send(), 0.06)
        slow_s += 0.06
    assert CRAWL_S <= slow_s <= CRAWL_S + 0.1
    assert scripted.pipeline.scheduler.costs.step_s(1) < 0.003


def test_steps_of_a_size_that_is_new_do_not_crawl() -> None:
    """After many small steps comes the first long prompt, whose usual time is unknown."""
    scripted = ScriptedPipeline()
    for _ in range(40):
        scripted.answer(scripted.send(), 0.002)
    scripted.pipeline.scheduler.add(Sequence([1] * 300, 300, Sampling()))
    sizes = []
    for _ in range(12):
        step = scripted.send()
        sizes.append(step.rows)
        scripted.answer(step, 0.03 * step.rows)
        assert not scripted.pipeline.lateness()
    assert max(sizes) > 20


def vitals(**counts: tuple[int, int]) -> dict[tuple[str, str], wire.Vitals]:
    """Return the frames in and out of `coordinator` and of the stages of a, b and c."""
    found = {}
    for name, (received, sent) in counts.items():
        place = ("a", "coordinator") if name == "coordinator" else (name, "stage")
        found[place] = wire.Vitals(received, sent)
    return found


def where(**counts: tuple[int, int]) -> list[str]:
    told = vitals(**counts)
    return [*stuck_at(plan(), lambda node_id, role: told.get((node_id, role)))]


def test_where_a_pipeline_is_stuck() -> None:
    assert where(coordinator=(9, 10), a=(10, 10), b=(10, 9), c=(9, 9)) == ["b"], "it holds a frame back"
    assert where(coordinator=(9, 10), a=(10, 10), b=(9, 9), c=(9, 9)) == ["b", "a"], (
        "a frame is lost on the way to it"
    )
    assert where(coordinator=(9, 10), a=(10, 10), b=(10, 10), c=(10, 10)) == ["a", "c"], (
        "on the way to the coordinator"
    )
    assert where(coordinator=(9, 10), a=(9, 9), b=(9, 9), c=(9, 9)) == ["a"], "inside of the first machine"
    assert where(coordinator=(10, 10), a=(10, 10), b=(10, 10), c=(10, 10)) == []
    assert where(coordinator=(9, 10), a=(11, 11), b=(11, 11), c=(11, 10)) == ["c"], "reported at different moments"


def fault_attribution(clock: Clock) -> tuple[FaultAttribution, Deployment]:
    membership = Membership(clock)
    for name in "abc":
        membership.admit(Member(NodeId(name), name, MACHINE))
    found = FaultAttribution(membership, clock, Quarantine(clock))
    found.open()
    return found, Deployment(5, plan(), wire.Address(NodeId("a"), "", 1), 1.0)


def test_a_broken_link_alone_is_blamed_on_the_unproven_machine() -> None:
    found, broken = fault_attribution(Clock())
    found.retire(frozenset({NodeId("a"), NodeId("b")}))
    found.note_failure(NodeId("b"), wire.Failed(5, "stage", "link broke", "a"))
    assert found.close(broken) == frozenset(), "no machine is blamed for a dismissed pipeline"
    found.open()
    found.note_failure(NodeId("a"), wire.Failed(5, "coordinator", "link broke", "c"))
    assert not found.is_clear(broken)
    assert found.close(broken) == {"c"}
    assert found.quarantine.quarantine("c")


def test_the_report_that_says_what_happened_counts() -> None:
    """The neighbours of an ended process report first. They are not blamed, and one end is not a habit."""
    clock = Clock()
    found, broken = fault_attribution(clock)
    for _ in range(2):
        found.note_failure(NodeId("a"), wire.Failed(5, "coordinator", "link broke", "c"))
        found.note_failure(NodeId("c"), wire.Failed(5, "stage", "exit status -9", cause="ended"))
        assert found.is_clear(broken)
        assert found.close(broken) == frozenset()
        assert found.restarting == {"c"}
        clock.now_s += SETTLED_S
        found.open()
    clock.now_s += 1
    found.note_failure(NodeId("c"), wire.Failed(5, "stage", "exit status -9", cause="ended"))
    assert found.close(broken) == frozenset()
    found.open()
    clock.now_s += 1
    found.note_failure(NodeId("c"), wire.Failed(5, "stage", "exit status -9", cause="ended"))
    assert found.close(broken) == {"c"}


def test_the_sender_of_wrong_frames_is_blamed_however_long_the_pipeline_has_served() -> None:
    clock = Clock()
    for served_s in (1.0, SETTLED_S):
        found, broken = fault_attribution(clock)
        clock.now_s += served_s
        found.note_failure(NodeId("b"), wire.Failed(5, "stage", "link broke", "c"))
        found.note_failure(NodeId("c"), wire.Failed(5, "stage", "a wrong epoch", "b", cause="invalid"))
        assert found.is_clear(broken)
        assert found.close(broken) == {"b"}
        assert not found.is_own_error


def test_only_a_stages_own_error_may_be_caused_by_a_request() -> None:
    for failure, expected in (
        (wire.Failed(5, "stage", "exit status -9", cause="ended"), True),
        (wire.Failed(5, "stage", "a step failed"), True),
        (wire.Failed(5, "coordinator", "link broke", "c"), False),
        (wire.Failed(5, "stage", "shows no sign of life", cause="silent"), False),
        (wire.Failed(wire.ANY_EPOCH, "node", "it is gone"), False),
    ):
        found, broken = fault_attribution(Clock())
        found.note_failure(NodeId("c"), failure)
        found.close(broken)
        assert found.is_own_error is expected, failure
        found.open()
        assert not found.is_own_error


def test_a_stuck_pipeline_is_blamed_on_the_holder_of_its_frames() -> None:
    found, broken = fault_attribution(Clock())
    for (node_id, role), told in vitals(coordinator=(9, 10), a=(10, 10), b=(10, 9), c=(9, 9)).items():
        known = {"coordinator": wire.Vitals(9, 10), "stage": told} if node_id == "a" else {role: told}
        if role == "stage":
            found.membership.beat(NodeId(node_id), wire.Heartbeat(2**33, {"": wire.ProcessReport(vitals=known)}))
    found.note_failure(NodeId("a"), wire.Failed(5, "coordinator", "not answered", cause="stuck"))
    assert found.close(broken) == {"b"}


def test_each_lost_machine_needs_its_own_standby() -> None:
    copies = (stage("x", 0), stage("x", 1), stage("y", 1))
    broken = plan(standbys=copies)
    specs = {copy.spec.index: copy.spec for copy in copies}
    ready = {(NodeId("x"), specs[0]), (NodeId("x"), specs[1]), (NodeId("y"), specs[1])}
    both = with_stand_ins(broken, {NodeId("a"), NodeId("b")}, ready)
    assert both
    assert both.pipeline == ("x", "y", "c")
    assert [s.spec for s in both.stages] == [s.spec for s in broken.stages], "no other machine loads layers"
    assert with_stand_ins(broken, {NodeId("b")}, ready - {(NodeId("x"), specs[1])}) is not None
    assert with_stand_ins(broken, {NodeId("b")}, {(NodeId("x"), specs[0])}) is None, "not loaded yet"
    assert with_stand_ins(broken, {NodeId("c")}, ready) is None
    assert with_stand_ins(broken, set(), ready) == broken
