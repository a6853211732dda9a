"""Models that come and go while the gateway runs, on real nodes: each answers as its reference."""

import asyncio
import functools
import itertools
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from cluster.chat_model import ChatModel
from cluster.client import ModelClient
from cluster.control import residency
from cluster.control.membership import Membership
from cluster.control.specs import DeploymentSpec
from cluster.control.topology import DeploymentState
from cluster.controller import Controller
from cluster.embedding import EmbedRequest
from cluster.errors import ClusterError, ClusterUnavailable, ModelNotFound, NameTaken, StageLost
from cluster.fleet import model_spec
from cluster.generation import GenerateRequest, Limits, TokenEvent, TokenPrompt
from cluster.nodes.local_nodes import LocalNodes
from cluster.plans.plan import Member
from cluster.trust.addresses import Target
from tests.cluster.test_deployments import PROMPT, answer, reference, save_chat
from tests.cluster.test_embeddings import TOKENS, vectors
from tests.clusters import DEMO_MODEL, GREEDY, PATIENCE_S
from tests.embedding_models import bert, expected, save

pytestmark = pytest.mark.anyio

SLOW_S = 600.0

_ids = itertools.count(1)


@asynccontextmanager
async def machines(
    folder: Path, nodes: int = 1, residence_s: float = 0.2, port: int = 0
) -> AsyncIterator[Controller]:
    """A cluster without models."""
    controller = Controller(folder / "cluster", slots=4, expected_nodes=nodes, residence_s=residence_s)
    port = await controller.start("127.0.0.1", port)
    local = LocalNodes(nodes, folder / "nodes", 0.3)
    try:
        await local.start(Target("127.0.0.1", port), [controller.new_token() for _ in range(nodes)])
        yield controller
    finally:
        await controller.stop()
        await local.stop()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def chat(controller: Controller, name: str) -> ChatModel:
    found = controller.chat_of(name)
    assert found
    return found


def state(controller: Controller, name: str) -> DeploymentState:
    return next(state for state in controller.topology().deployments if state.model == name)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.02)


async def status(controller: Controller, name: str, wanted: str) -> None:
    await until(lambda: state(controller, name).status == wanted)


def told(controller: Controller, kind: str) -> list[str]:
    return [event.text for event in reversed(controller.events()) if event.kind == kind]


class Budget:
    """The memory that every machine seems to have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.usable_bytes = 2**40
        monkeypatch.setattr(Membership, "_as_usable", lambda _, member, __: self._resized(member))

    def models(self, model: ChatModel, count: float) -> None:
        """Have the machines hold this many models like this one, which serves."""
        claim = model.manager.claim()
        assert claim
        assert claim.serving
        [held] = claim.serving.values()
        self.usable_bytes = int(held.least_bytes * count)

    def _resized(self, member: Member) -> Member:
        machine = msgspec.structs.replace(member.machine, memory_usable_bytes=self.usable_bytes)
        return msgspec.structs.replace(member, machine=machine)


async def long_answer(model: ChatModel, begun: asyncio.Event) -> int:
    """Ask for an answer that does not end by itself. Return the number of its tokens."""
    limits = Limits(max_tokens=200, ignore_eos=True)
    request = GenerateRequest(id=f"long-{next(_ids)}", prompt=TokenPrompt(PROMPT), sampling=GREEDY, limits=limits)
    tokens = 0
    async for event in model.generate(request):
        if isinstance(event, TokenEvent):
            tokens += len(event.tokens)
            begun.set()
    return tokens


async def ask_long(model: ChatModel) -> asyncio.Task[int]:
    """Return a request that is being answered."""
    begun = asyncio.Event()
    asking = asyncio.create_task(long_answer(model, begun))
    await asyncio.wait([asking, waiting := asyncio.create_task(begun.wait())], return_when="FIRST_COMPLETED")
    waiting.cancel()
    assert begun.is_set() or asking.result()
    return asking


async def other_models_requests_are_refused(controller: Controller) -> None:
    """A port may belong to another model's process by the time a request arrives."""
    deployment, serving = chat(controller, "words").deployment, controller.embedders[1].serving
    assert deployment
    assert serving
    coordinator = await ModelClient.open(deployment.coordinator, controller._identity, "model:other")
    embedder = await ModelClient.open(serving.client.address, controller._identity, "model:other", "embedder")
    try:
        with pytest.raises(ClusterUnavailable, match="another model"):
            async for _ in coordinator.generate(GenerateRequest(id="other", prompt=TokenPrompt(PROMPT))):
                pass
        with pytest.raises(ClusterUnavailable, match="another model"):
            await embedder.embed(EmbedRequest(id="other", token_ids=TOKENS))
    finally:
        await coordinator.close()
        await embedder.close()


async def test_models_come_and_go_while_the_gateway_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_chat(tmp_path / "words")
    (tmp_path / "empty").mkdir()
    encoder = save(tmp_path / "encoder", bert(), "mean_tokens", normalize=True)
    words = DeploymentSpec("words", str(tmp_path / "words"), precision="fp32")
    wanted = reference(tmp_path / "words")
    async with machines(tmp_path) as controller:
        assert await controller.run_model(words) == "words"
        vectors_spec = DeploymentSpec("vectors", str(tmp_path / "encoder"), "embedding", priority=70)
        assert await controller.run_model(vectors_spec) == "vectors"
        assert await answer(chat(controller, "words")) == wanted
        # There is no model of the settings, so the picture of the cluster and its plan show this one.
        assert controller.topology().model == "words"
        assert controller.topology().plan
        assert (await controller.draft_plan()).then
        [embedder] = controller.embedders[1:]
        embedded = await embedder.embed(EmbedRequest(id="come", token_ids=TOKENS))
        ours = expected(encoder, "mean_tokens", TOKENS, normalize=True)
        torch.testing.assert_close(vectors(embedded), ours, rtol=1e-4, atol=1e-5)
        seen = state(controller, "vectors")
        assert (seen.status, seen.priority, seen.running, seen.is_pinned) == ("ready", 70, 0, False)
        assert seen.load_s
        assert seen.last_used_s is not None
        await other_models_requests_are_refused(controller)
        with pytest.raises(NameTaken):
            await controller.run_model(replace(vectors_spec, name="words"))
        with pytest.raises(ClusterError, match="empty"):
            await controller.run_model(DeploymentSpec("bad", str(tmp_path / "empty")))
        assert controller.chat_of("bad") is None
        # A stopped model is unloaded. Its answers get their time, and a request loads it again.
        monkeypatch.setattr(residency, "DRAIN_S", 60.0)
        asking = await ask_long(chat(controller, "words"))
        stopping = asyncio.create_task(controller.stop_model("words"))
        await status(controller, "words", "draining")
        late = asyncio.create_task(answer(chat(controller, "words")))
        assert await asking == 200
        await stopping
        assert await late == wanted
        assert [text for text in told(controller, "unloaded") if "words" in text] == [
            "words was unloaded: it was stopped"
        ]
        # Answers that take too long end with the error of a lost cluster.
        asking = await ask_long(chat(controller, "words"))
        await controller._fleet.residency.drain(chat(controller, "words").manager, "it was stopped", 0.0)
        with pytest.raises(StageLost):
            await asking
        assert state(controller, "words").status == "unloaded"
        assert not controller._roster.membership.holds("model:words")
        await controller.remove_model("vectors")
        with pytest.raises(ModelNotFound):
            await controller.stop_model("vectors")
        with pytest.raises(ClusterUnavailable):
            await embedder.embed(EmbedRequest(id="gone", token_ids=TOKENS))
    # Only what was not removed is there after a restart.
    again = Controller(tmp_path / "cluster")
    assert [(type(model), source) for model, source in again.further] == [(ChatModel, words.reference)]
    file = tmp_path / "cluster" / "deployments.json"
    file.write_text(file.read_text()[:-3])
    with pytest.raises(ClusterError, match=rf"{file} is damaged: .* delete it"):
        Controller(tmp_path / "cluster")
    file.write_text('{"version": 2, "models": {}}')
    with pytest.raises(ClusterError, match=rf"{file} has version 2, this program reads 1"):
        Controller(tmp_path / "cluster")


async def test_a_stop_that_is_cancelled_leaves_its_model_open(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "cluster", served_name="words")
    await controller.chat.load_model(str(DEMO_MODEL))
    readiness, gate = controller.chat.readiness, controller.chat.manager.gate
    await readiness.tell("ready", "it serves")
    answering = await gate.admit(PATIENCE_S)
    assert answering
    stopping = asyncio.create_task(controller.stop_model("words"))
    await until(lambda: readiness.is_closed)
    with pytest.raises(ClusterUnavailable):
        await gate.admit(0.01)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    assert await gate.admit(0.01)


async def test_names_and_stored_changes(tmp_path: Path) -> None:
    save_chat(tmp_path / "words")
    added = DeploymentSpec("added", str(tmp_path / "words"))
    controller = Controller(tmp_path / "cluster", further=[replace(added, name="further")])
    first, [(further, reference_)] = controller.chat, controller.further
    await first.load_model(str(DEMO_MODEL))
    await further.load_model(reference_)
    await controller.run_model(added)
    assert first.model_name
    controller.set_idle("added", 5.0)
    controller.set_idle("further", 6.0)
    idle = {each.model: each.idle_s for each in controller.topology().deployments}
    assert idle == {first.model_name: None, "further": 6.0, "added": 5.0}
    with pytest.raises(ModelNotFound):
        controller.set_idle("unknown", None)
    # Without the first model, an added one takes its place; it can be loaded again.
    assert controller.topology().model == first.model_name
    await controller.remove_model(first.model_name)
    assert controller.topology().model == "further"
    # A model that finishes its answers has its deployment for itself.
    controller._fleet.models.remove(chat(controller, "added"))
    await controller.run_model(replace(added, idle_s=7.0))
    deployments = [each.deployment_name for each in controller._fleet.supervisors]
    assert len(deployments) == len(set(deployments)) == 5
    # Only what was added is stored. A name of the settings hides a stored model, which is there again without it.
    for reserved in (), ("added",), ():
        again = Controller(tmp_path / "cluster", reserved=reserved)
        specs = [model_spec(model) for model, _ in again.further]
        assert specs == ([] if reserved else [replace(added, idle_s=7.0)])


async def test_a_model_is_loaded_for_requests_while_the_files_of_its_replacement_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {}
    for seed, name in enumerate(["old", "new"]):
        save_chat(tmp_path / name, seed=seed)
        wanted[name] = reference(tmp_path / name)
    may_read, read = threading.Event(), ChatModel._read_model

    def read_late(self: ChatModel, source: str, progress: Any) -> Any:
        assert may_read.wait(PATIENCE_S)
        return read(self, source, progress)

    async with machines(tmp_path) as controller:
        spec = DeploymentSpec("name", str(tmp_path / "old"), precision="fp32")
        await controller.run_model(spec)
        await controller.stop_model("name")
        monkeypatch.setattr(ChatModel, "_read_model", read_late)
        replacing = asyncio.create_task(
            controller.replace_model("name", replace(spec, reference=str(tmp_path / "new")))
        )
        try:
            await asyncio.sleep(0)
            assert await answer(chat(controller, "name")) == wanted["old"]
        finally:
            may_read.set()
        await replacing
        assert await answer(chat(controller, "name")) == wanted["new"]


async def test_an_idle_model_is_unloaded_loaded_again_and_survives_a_restart(tmp_path: Path) -> None:
    save_chat(tmp_path / "words")
    wanted = reference(tmp_path / "words")
    port = free_port()
    async with machines(tmp_path, port=port) as controller:
        spec = DeploymentSpec("words", str(tmp_path / "words"), precision="fp32", idle_s=0.2)
        await controller.run_model(spec)
        await controller.run_model(replace(spec, name="kept", is_pinned=True))
        for _ in range(2):
            assert await answer(chat(controller, "words")) == wanted
            await status(controller, "words", "unloaded")
            assert state(controller, "words").reason == "idle for 0.2 s"
        await status(controller, "kept", "ready")
        # Another gateway on the same data finds both, and the machine that still has one of them loaded.
        await controller.stop()
        again = Controller(tmp_path / "cluster", slots=4)
        await again.start("127.0.0.1", port)
        try:
            for model, source in again.further:
                await model.load_model(source)
            assert await answer(chat(again, "words")) == await answer(chat(again, "kept")) == wanted
            assert state(again, "kept").is_pinned
            await status(again, "words", "unloaded")
        finally:
            await again.stop()
        assert told(controller, "unloaded") == ["words was unloaded: idle for 0.2 s"] * 2
        assert "words is loaded: 1 request waits for it" in told(controller, "loading")


async def test_three_models_take_turns_in_memory_for_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["red", "green", "blue"]
    wanted = {}
    for seed, name in enumerate(names):
        save_chat(tmp_path / name, seed=seed)
        wanted[name] = reference(tmp_path / name)
    budget = Budget(monkeypatch)
    async with machines(tmp_path, residence_s=0.5) as controller:
        await until(lambda: len(controller.topology().members) == 1)
        for at, name in enumerate(names):
            pinned = at == 0
            spec = DeploymentSpec(
                name, str(tmp_path / name), precision="fp32", context_tokens=128, is_pinned=pinned
            )
            await controller.run_model(spec)
            if at == 0:
                await status(controller, name, "ready")
                budget.models(chat(controller, name), 2.5)
        random_ = random.Random(3)

        async def one(after_s: float) -> None:
            await asyncio.sleep(after_s)
            name = random_.choice(names)
            assert await answer(chat(controller, name)) == wanted[name]
            states = {each.model: each.status for each in controller.topology().deployments}
            assert states["red"] == "ready"
            assert list(states.values()).count("ready") <= 2

        await asyncio.gather(*(one(random_.random() * 6) for _ in range(60)))
        evictions = [event for event in controller.events() if event.kind == "unloaded"]
        assert len(evictions) >= 2
        assert {event.text for event in evictions} <= {
            "green was unloaded: memory for blue",
            "blue was unloaded: memory for green",
        }
        loads = sorted(
            event.at_s for event in controller.events() if event.kind == "ready" and "red" not in event.text
        )
        left = sorted(event.at_s for event in evictions)
        assert all(any(before + 0.5 <= at for before in loads) for at in left)
        assert all(later - sooner >= 0.5 for sooner, later in itertools.pairwise(left))


@pytest.mark.parametrize("is_tight", [False, True])
async def test_a_model_is_replaced_under_load_without_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_tight: bool
) -> None:
    """The new one is loaded beside the old one, or after it if memory is short. A bad one changes nothing."""
    wanted = {}
    for seed, name in enumerate(["old", "new", "bad"]):
        save_chat(tmp_path / name, seed=seed)
        wanted[name] = reference(tmp_path / name)
    (tmp_path / "bad" / "tokenizer.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    budget = Budget(monkeypatch)
    async with machines(tmp_path) as controller:
        spec = DeploymentSpec("name", str(tmp_path / "old"), precision="fp32", context_tokens=128)
        await controller.run_model(spec)
        await status(controller, "name", "ready")
        budget.models(chat(controller, "name"), 1.5 if is_tight else 8.0)
        is_over = asyncio.Event()
        answers: list[list[int]] = []

        async def keep_asking() -> None:
            while not is_over.is_set():
                answers.append(await answer(chat(controller, "name")))
                assert answers[-1] in (wanted["old"], wanted["new"])

        asking = [asyncio.create_task(keep_asking()) for _ in range(3)]
        for bad in ("empty", "bad"):
            with pytest.raises(ClusterError):
                await controller.replace_model("name", replace(spec, reference=str(tmp_path / bad)))
            await until(functools.partial(lambda before: len(answers) > before + 5, len(answers)))
            assert answers[-1] == wanted["old"]
        await controller.replace_model("name", replace(spec, reference=str(tmp_path / "new")))
        assert await answer(chat(controller, "name")) == wanted["new"]
        is_over.set()
        await asyncio.gather(*asking)
        await until(lambda: len(controller._fleet.supervisors) == 3)
        assert [each.model for each in controller.topology().deployments] == ["name"]
    [(_, source)] = Controller(tmp_path / "cluster").further
    assert source == str(tmp_path / "new")


async def test_a_model_that_fails_to_load_takes_no_memory_from_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_chat(tmp_path / "good")
    save_chat(tmp_path / "bad")
    (tmp_path / "bad" / "tokenizer.json").write_text("{}")
    wanted = reference(tmp_path / "good")
    budget = Budget(monkeypatch)
    async with machines(tmp_path) as controller:
        spec = DeploymentSpec("good", str(tmp_path / "good"), precision="fp32", context_tokens=128)
        await controller.run_model(spec)
        await status(controller, "good", "ready")
        budget.models(chat(controller, "good"), 1.5)
        await controller.run_model(replace(spec, name="bad", reference=str(tmp_path / "bad"), priority=90))
        await until(lambda: "failed" in {event.kind for event in controller.events()})
        assert await answer(chat(controller, "good")) == wanted
        for _ in range(2):
            asking = asyncio.create_task(answer(chat(controller, "bad"), patience_s=1.0))
            assert await answer(chat(controller, "good")) == wanted
            with pytest.raises(ClusterUnavailable, match=r"could not be loaded: .*tokenizer\.json"):
                await asking
        assert [text for text in told(controller, "unloaded") if text.startswith("good")] == [
            "good was unloaded: memory for bad"
        ]


@pytest.mark.slow
async def test_models_come_and_go_for_ten_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four models in memory for two are asked, stopped and replaced. No request fails, and every answer is right."""
    names = ["red", "green", "blue", "gold"]
    wanted: dict[str, list[list[int]]] = {}
    for seed, name in enumerate([*names, "other"]):
        save_chat(tmp_path / name, seed=seed)
        wanted[name] = [reference(tmp_path / name)]
    for name in names:
        wanted[name].append(wanted["other"][0])
    budget, chance = Budget(monkeypatch), random.Random(11)
    until_s = time.monotonic() + SLOW_S
    asked: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    async with machines(tmp_path, residence_s=1.0) as controller:
        await until(lambda: len(controller.topology().members) == 1)
        specs = {
            name: DeploymentSpec(
                name, str(tmp_path / name), precision="fp32", context_tokens=128, idle_s=chance.choice([None, 2.0])
            )
            for name in names
        }
        await controller.run_model(specs["red"])
        await status(controller, "red", "ready")
        budget.models(chat(controller, "red"), 2.5)
        for name in names[1:]:
            await controller.run_model(specs[name])

        async def ask() -> None:
            while time.monotonic() < until_s:
                name = chance.choice(names)
                assert await answer(chat(controller, name)) in wanted[name]
                asked[name] += 1
                await asyncio.sleep(chance.random())

        async def move() -> None:
            while time.monotonic() < until_s:
                await asyncio.sleep(2 * chance.random())
                name = chance.choice(names)
                if (action := chance.choice(["stop", "replace"])) == "stop":
                    await controller.stop_model(name)
                else:
                    await controller.replace_model(
                        name, replace(specs[name], reference=str(tmp_path / chance.choice([name, "other"])))
                    )
                moved[action] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(ask())
            group.create_task(move())
        await until(lambda: len(controller._fleet.supervisors) == 2 + len(names))
        assert not controller._fleet.residency._held
    assert min(asked.values()) > SLOW_S / 30
    assert min(moved.values()) > SLOW_S / 60
