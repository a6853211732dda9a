"""A stage process's shelf: each copy is loaded once and kept only as long as the controller needs it."""

import queue
import threading
from pathlib import Path

import pytest
import torch

from cluster import wire
from cluster.compute.steps import LoadedStage
from cluster.engine.stage import Stage
from cluster.models.manifest import Manifest, read_manifest
from cluster.models.stage_spec import StageSpec
from cluster.trust.authority import Authority
from tests.cluster.test_steps import DEMO_MODEL, load
from tests.clusters import PATIENCE_S


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return read_manifest(DEMO_MODEL, "demo")


def test_a_copy_is_loaded_once_and_dropped_when_no_longer_needed(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[StageSpec] = []
    may_load = threading.Semaphore(0)
    copies = [load(manifest, index, 2) for index in range(2)]

    def slowly(_: Stage, spec: StageSpec, *others: object) -> LoadedStage:
        loads.append(spec)
        assert may_load.acquire(timeout=PATIENCE_S)
        return copies[spec.index]

    monkeypatch.setattr(Stage, "_load", slowly)
    identity = Authority.open(tmp_path / "authority").issue_identity(tmp_path / "node", "node", "n")
    reports: queue.Queue[wire.Message] = queue.Queue()
    stage = Stage(identity, "127.0.0.1", torch.device("cpu"), reports.put)
    running = threading.Thread(target=stage.run)
    running.start()
    first, second = (copy.spec for copy in copies)
    try:

        def shelve(epoch: int, spec: StageSpec) -> None:
            stage.deliver(wire.Shelve(epoch, spec, manifest, str(DEMO_MODEL), others=[first, second]))

        for epoch in (1, 2):
            shelve(epoch, first)
        shelve(2, second)
        stage.deliver(wire.Tidy(3, manifest.digest, [first]))
        may_load.release(2)
        answers = [reports.get(timeout=PATIENCE_S) for _ in range(2)]
        assert sorted(loads, key=lambda spec: spec.index) == [first, second]
        assert wire.Shelved(2, first, ok=True) in answers
        assert wire.Shelved(2, second, ok=False) in answers
        shelve(4, first)
        assert reports.get(timeout=PATIENCE_S) == wire.Shelved(4, first, ok=True)
        assert len(loads) == 2, "it is there already"
    finally:
        may_load.release(2)
        stage.stop()
        running.join(PATIENCE_S)
