"""Answers of machines during a rollout: wrong ports, ended processes, unneeded copies."""

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from cluster import wire
from cluster.control.deployment import Model, Rollout
from cluster.control.loaded_stages import LoadedStages
from cluster.control.standbys import Standbys
from cluster.errors import NodeFailed
from cluster.models.manifest import Manifest
from cluster.trust.identity import NodeId
from tests.cluster.test_plan import card
from tests.cluster.test_recovery import plan, stage

pytestmark = pytest.mark.anyio

MODEL = Model("m", Path("m"), Manifest(name="m", config={}, files={}, tensors={}), card())
TERMS = wire.Terms(MODEL.manifest.digest, "fp32")
A, B, C = (NodeId(name) for name in "abc")


@dataclass
class Machines:
    """Machines that receive orders and give the answers of the test."""

    told: list[tuple[NodeId, wire.DeploymentMessage]] = field(default_factory=list)
    answers: deque[tuple[NodeId, wire.Message]] = field(default_factory=deque)

    async def send(self, node_id: NodeId, message: wire.DeploymentMessage) -> None:
        self.told.append((node_id, message))

    async def answer(self, until_s: float) -> tuple[NodeId, wire.Message]:
        if not self.answers:
            async with asyncio.timeout_at(until_s):
                await asyncio.sleep(3600)
        return self.answers.popleft()

    def rollout(self, *answers: tuple[NodeId, wire.Message]) -> Rollout:
        self.answers = deque(answers)
        return Rollout(5, MODEL, plan(), LoadedStages(), self.send, self.answer)


def ready(role: str, port: int, client_port: int = 0) -> wire.Ready:
    return wire.Ready(5, role, "127.0.0.1", port, client_port, terms=TERMS, wire="fp32")


@pytest.mark.parametrize(
    ("culprit", "answer"),
    [
        (B, ready("stage", 0)),
        (B, ready("stage", 2**16)),
        (A, ready("coordinator", 9, -1)),
        (A, ready("coordinator", 2**70, 9)),
    ],
)
async def test_no_machine_is_ordered_to_dial_an_invalid_port(culprit: NodeId, answer: wire.Ready) -> None:
    machines = Machines()
    with pytest.raises(NodeFailed) as failed:
        await machines.rollout((C, ready("stage", 9)), (culprit, answer)).run()
    assert failed.value.node_id == culprit
    assert not any(isinstance(message, wire.Connect) for _, message in machines.told)


async def test_a_clear_report_on_a_broken_pipeline_counts_although_a_neighbour_reports_first() -> None:
    closed = wire.Failed(5, "stage", "closed the link", A)
    lie = wire.Failed(5, "coordinator", "a wrong epoch", C, "invalid")
    with pytest.raises(NodeFailed, match="a wrong epoch") as failed:
        await Machines().rollout((A, closed), (B, ready("stage", 9)), (A, lie)).run()
    assert (failed.value.node_id, failed.value.peer_ids) == (C, (A,))
    with pytest.raises(NodeFailed, match="closed the link"):
        await Machines().rollout((A, closed)).run()


@pytest.mark.parametrize(("lacking", "said"), [(A, "a: no llguidance"), (C, "c: no llguidance"), (None, "")])
async def test_the_machine_that_cannot_enforce_schemas_is_named(lacking: NodeId | None, said: str) -> None:
    """The coordinator and the last stage must both support schemas."""
    stages = [(node_id, ready("stage", 9)) for node_id in (A, B, C)]
    answers = [(A, ready("coordinator", 8, 7)), *stages]
    told = [
        (node_id, replace(answer, unconstrained="no llguidance" if node_id == lacking else ""))
        for node_id, answer in answers
    ]
    closing: list[tuple[NodeId, wire.Message]] = [(node_id, wire.Connected(5)) for node_id in (A, B, C)]
    deployment = await Machines().rollout(*told, *closing, (A, wire.PipelineClosed(5, 1.0))).run()
    assert deployment.unconstrained == said


async def test_a_process_that_ends_while_it_loads_is_not_waited_for() -> None:
    """Its report names its earlier pipeline's epoch. Losses of other processes do not matter here."""
    ended = wire.Failed(3, "stage", "exit status -9", cause="ended")
    rollout = Machines().rollout((A, ended), (B, ended))
    with pytest.raises(NodeFailed) as failed:
        await rollout.shelve([stage("b", 1), stage("c", 2)])
    assert failed.value.node_id == B


async def test_copies_are_counted_by_their_layers_and_dropped() -> None:
    machines, loaded_stages, epochs = Machines(), LoadedStages(), itertools.count(1)
    standbys = Standbys(loaded_stages, machines.send)
    one, other = stage("x", 0), stage("x", 1)
    await standbys.keep_loaded(next(epochs), MODEL, [one, other])
    await standbys.note(NodeId("x"), wire.Shelved(1, other.spec, ok=True))
    assert not loaded_stages.shelved, "it was not ordered yet"
    for copy in (one, other):
        await standbys.note(NodeId("x"), wire.Shelved(1, copy.spec, ok=True))
    assert standbys.ready == (one, other)
    assert not standbys.forget(NodeId("x"))
    machines.told.clear()

    await standbys.keep_loaded(next(epochs), MODEL, [other])
    assert machines.told == [(NodeId("x"), wire.Tidy(2, MODEL.manifest.digest, [other.spec]))]
    assert loaded_stages.shelved[NodeId("x")] == {other.spec}
    await standbys.keep_loaded(next(epochs), MODEL, [one, other])
    assert standbys.forget(NodeId("x")), "it was loading when its process ended"
