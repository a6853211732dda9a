"""Real clusters for tests: a controller in the test's process, nodes in their own."""

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster import wire
from cluster.controller import Controller
from cluster.fleet import CHAT
from cluster.generation import (
    Done,
    GenerateRequest,
    GenerationEvent,
    Limits,
    Prompt,
    Sampling,
    TextPrompt,
    TokenEvent,
)
from cluster.models.model_card import Precision
from cluster.nodes.local_nodes import LocalNodes
from cluster.plans.plan import Goal
from cluster.trust.addresses import Target
from tests.templates import children_of

DEMO_MODEL = Path(__file__).parents[1] / "demo" / "model"
PATIENCE_S = 60.0
"""What has not happened by then never will, however busy the machine is."""
GREEDY = Sampling(temperature=0.0, logprobs=0)

_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request: each choice's text and token ids, and the totals."""

    texts: dict[int, str]
    token_ids: dict[int, list[int]]
    finishes: dict[int, str]
    events: list[GenerationEvent]
    done: Done


@dataclass(frozen=True, slots=True)
class Cluster:
    controller: Controller
    nodes: LocalNodes
    port: int

    def node_process(self, number: int) -> psutil.Process:
        """The agent of node `number`, counted from 1."""
        return psutil.Process(self.nodes.pids[number - 1])

    def coordinator_vitals(self) -> wire.Vitals | None:
        """Return the latest counters of the current pipeline's coordinator."""
        deployment = self.controller.chat.deployment
        membership = self.controller._roster.membership
        return membership.vitals(CHAT, deployment.coordinator.node_id, "coordinator") if deployment else None

    async def ask(
        self,
        prompt: str | Prompt,
        *,
        sampling: Sampling = GREEDY,
        max_tokens: int | None = 32,
        stop: Sequence[str] = (),
        ignore_eos: bool = True,
        n: int = 1,
    ) -> Answer:
        """Ask for log-probabilities (as GREEDY does) to get token ids back."""
        request = GenerateRequest(
            id=f"test-{next(_ids)}",
            prompt=TextPrompt(prompt) if isinstance(prompt, str) else prompt,
            sampling=sampling,
            limits=Limits(max_tokens=max_tokens, stop=tuple(stop), ignore_eos=ignore_eos),
            n=n,
        )
        events = [event async for event in self.controller.chat.generate(request)]
        return _answer(events, n)


def child(agent: psutil.Process, role: str) -> psutil.Process | None:
    """A node's stage or head process."""
    module = "coordinator_process" if role == "head" else f"{role}_process"
    return next(iter(children_of(agent, f"cluster.engine.{module}")), None)


def _answer(events: list[GenerationEvent], n: int) -> Answer:
    texts = dict.fromkeys(range(n), "")
    token_ids: dict[int, list[int]] = {choice: [] for choice in range(n)}
    finishes: dict[int, str] = {}
    for event in events:
        if isinstance(event, TokenEvent):
            texts[event.choice] += event.text
            token_ids[event.choice] += [token.token_id for token in event.tokens]
            if event.finish:
                finishes[event.choice] = event.finish
    done = events[-1]
    assert isinstance(done, Done)
    return Answer(texts, token_ids, finishes, events, done)


@asynccontextmanager
async def running_cluster(
    folder: Path,
    nodes: int,
    model: Path = DEMO_MODEL,
    *,
    precision: Precision | None = "fp32",
    slots: int = 32,
    stages: int | None = None,
    goal: Goal = "throughput",
    log_style: str = "json:info",
    kv_disk_gb: float = 0.0,
) -> AsyncIterator[Cluster]:
    """A cluster that serves `model`, cut over all of its nodes unless `stages` are fewer.

    In fp32 its tokens are the reference's on any device; by itself, it would choose bf16 on a GPU.
    """
    controller = Controller(
        folder / "cluster", precision=precision, slots=slots, expected_nodes=nodes, stages_min=stages, goal=goal
    )
    port = await controller.start("127.0.0.1", 0)
    local = LocalNodes(nodes, folder / "nodes", log_style=log_style, kv_disk_gb=kv_disk_gb)
    try:
        await controller.chat.load_model(str(model))
        await local.start(Target("127.0.0.1", port), [controller.new_token() for _ in range(nodes)])
        await controller.chat.wait_ready(PATIENCE_S)
        yield Cluster(controller, local, port)
    finally:
        await controller.stop()
        await local.stop()
