"""Two chat models and an embedder on the same machines: each answers as its reference while a machine is lost."""

import asyncio
import itertools
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.chat_model import ChatModel
from cluster.control.next_plan import Planning
from cluster.control.specs import DeploymentSpec
from cluster.controller import Controller
from cluster.embedding import EmbedRequest
from cluster.errors import ClusterUnavailable, ModelDoesNotFit
from cluster.generation import GenerateRequest, Limits, TokenEvent, TokenPrompt
from cluster.nodes.local_nodes import LocalNodes
from cluster.plans.memory_division import Share
from cluster.trust.addresses import Target
from tests.cluster.test_embeddings import TOKENS, vectors
from tests.clusters import DEMO_MODEL, GREEDY, PATIENCE_S, Cluster
from tests.embedding_models import VOCABULARY, bert, expected, put, save

pytestmark = pytest.mark.anyio

PROMPT = [17, 30, 4, 99, 12]
TOKENS_MAX = 24

_ids = itertools.count(1)


def save_chat(folder: Path, context_tokens: int = 256, seed: int = 5) -> None:
    """A tiny chat model with random weights, and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(
        vocab_size=VOCABULARY, intermediate_size=96, head_dim=16, max_position_embeddings=context_tokens,
        eos_token_id=1, bos_token_id=0, pad_token_id=0, **shape,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{at}": at for at in range(VOCABULARY)}, unk_token="w2"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(folder / "tokenizer.json"))
    put(folder / "tokenizer_config.json", {"eos_token": "w1", "tokenizer_class": "PreTrainedTokenizerFast"})


def reference(folder: Path) -> list[int]:
    """What transformers answers greedily, whether the model wants to end or not."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(TOKENS_MAX):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


async def answer(chat: ChatModel, patience_s: float | None = None) -> list[int]:
    request = GenerateRequest(
        id=f"many-{next(_ids)}",
        prompt=TokenPrompt(PROMPT),
        sampling=GREEDY,
        limits=Limits(max_tokens=TOKENS_MAX, ignore_eos=True),
    )
    return [
        token.token_id
        async for event in chat.generate(request, patience_s)
        if isinstance(event, TokenEvent)
        for token in event.tokens
    ]


@asynccontextmanager
async def many(folder: Path, nodes: int, *further: DeploymentSpec, without: str = "") -> AsyncIterator[Cluster]:
    """The demo model over all nodes, and further models. The one `without` files is still being read."""
    controller = Controller(folder / "cluster", precision="fp32", slots=4, expected_nodes=nodes, further=further)
    port = await controller.start("127.0.0.1", 0)
    local = LocalNodes(nodes, folder / "nodes", 0.3)
    try:
        await local.start(Target("127.0.0.1", port), [controller.new_token() for _ in range(nodes)])
        reading = [asyncio.create_task(controller.chat.load_model(str(DEMO_MODEL)))]
        for given, (model, source) in zip(further, controller.further, strict=True):
            task: asyncio.Task[Any] = asyncio.create_task(model.load_model(source))
            reading += [task] if given.name != without else []
        await asyncio.gather(*reading)
        yield Cluster(controller, local, port)
    finally:
        await controller.stop()
        await local.stop()


async def test_models_share_machines_and_answer_as_their_references_while_one_is_lost(tmp_path: Path) -> None:
    save_chat(tmp_path / "words")
    encoder = save(tmp_path / "encoder", bert(), "mean_tokens", normalize=True)
    wanted = expected(encoder, "mean_tokens", TOKENS, normalize=True)
    demo, words = reference(DEMO_MODEL), reference(tmp_path / "words")
    further = (
        DeploymentSpec("words", str(tmp_path / "words"), precision="fp32"),
        DeploymentSpec("vectors", str(tmp_path / "encoder"), "embedding"),
    )
    async with many(tmp_path, 3, *further) as cluster:
        controller = cluster.controller
        (second,), (embedder,) = controller.chats[1:], controller.embedders[1:]
        for model in (controller.chat, second, embedder):
            await model.readiness.wait(PATIENCE_S)

        async def all_answer() -> None:
            request = EmbedRequest(id=f"many-{next(_ids)}", token_ids=TOKENS)
            first, other, embedded = await asyncio.gather(
                answer(controller.chat), answer(second), embedder.embed(request)
            )
            assert (first, other) == (demo, words)
            torch.testing.assert_close(vectors(embedded), wanted, rtol=1e-4, atol=1e-5)

        async with asyncio.timeout(3 * PATIENCE_S):
            await all_answer()
            states = controller.topology().deployments
            assert [(state.model, state.kind, state.status) for state in states] == [
                ("model", "chat", "ready"),
                ("words", "chat", "ready"),
                ("vectors", "embedding", "ready"),
            ]
            assert [len(state.machines) for state in states] == [3, 1, 1]
            plan = second.deployment.plan if second.deployment else None
            assert plan
            assert any("memory is divided with" in reason for reason in plan.reasons)
            [victim] = [member for member in controller.topology().members if member.node_id in states[1].machines]
            agent = cluster.node_process(int(victim.name.removeprefix("node-")))
            # All its machine's processes end with the agent, whichever models they serve.
            asking = [asyncio.create_task(all_answer()) for _ in range(3)]
            await asyncio.sleep(0.05)
            agent.kill()
            await asyncio.gather(*asking)
            await all_answer()
            assert victim.node_id not in controller.topology().deployments[1].machines


async def test_a_model_that_does_not_fit_does_not_disturb_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Activations and cache of its context need far more memory than any machine has."""
    save_chat(tmp_path / "words", context_tokens=2**26)
    large = DeploymentSpec("large", str(tmp_path / "words"), context_tokens=2**26)
    async with many(tmp_path, 2, large) as cluster:
        controller = cluster.controller
        await controller.chat.readiness.wait(PATIENCE_S)
        [other] = controller.chats[1:]
        async with asyncio.timeout(PATIENCE_S):
            while other.status[0] != "failed":
                await asyncio.sleep(0.05)
        assert re.search(r"usable beside model: \d+ MiB short", other.status[1])
        with pytest.raises(ClusterUnavailable, match="MiB short"):
            await answer(other)
        expected_tokens = reference(DEMO_MODEL)
        assert await answer(controller.chat) == expected_tokens
        assert controller.chat.manager.epoch == 1
        # A model that takes more than its share is deployed again, although its plan is as fast as before.
        monkeypatch.setattr(Share, "allows", lambda *_: False)
        controller.chat.manager.look_again()
        async with asyncio.timeout(PATIENCE_S):
            while controller.chat.manager.epoch == 1 or not controller.chat.is_ready:
                assert await answer(controller.chat) == expected_tokens
        assert await answer(controller.chat) == expected_tokens


async def test_a_pull_that_hangs_does_not_hold_back_the_first_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_chat(tmp_path / "words")
    words, is_pulled, read = str(tmp_path / "words"), threading.Event(), ChatModel._read_model

    def pull(self: ChatModel, reference: str, progress: Any) -> Any:
        assert reference != words or is_pulled.wait(3 * PATIENCE_S)
        return read(self, reference, progress)

    monkeypatch.setattr(ChatModel, "_read_model", pull)
    monkeypatch.setattr("cluster.control.manager.GATHER_TIMEOUT_S", 3600.0)
    checks: list[tuple[str, bool]] = []
    exceeds = Planning.exceeds_share

    async def check(self: Planning, *given: Any) -> bool:
        checks.append((self._subscription.deployment, second.is_ready))
        return await exceeds(self, *given)

    monkeypatch.setattr(Planning, "exceeds_share", check)
    async with many(tmp_path, 1, DeploymentSpec("words", words), without="words") as cluster:
        try:
            [second] = cluster.controller.chats[1:]
            await cluster.controller.chat.wait_ready(PATIENCE_S)
            assert second.manager.is_reading
        finally:
            is_pulled.set()
        async with asyncio.timeout(PATIENCE_S):
            # The first model compares its plan when the other one needs memory, and when it is known where.
            while not {("chat", False), ("chat", True)} <= set(checks):
                await asyncio.sleep(0.05)
        assert await answer(second) == reference(tmp_path / "words")


async def test_a_model_that_comes_during_a_rollout_is_considered_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = asyncio.Event()

    async def check(*_: Any) -> bool:
        checked.set()
        return False

    async def does_not_fit(*_: Any) -> Any:
        raise ModelDoesNotFit("model", 2, 1)

    monkeypatch.setattr(Planning, "exceeds_share", check)
    async with many(tmp_path, 1) as cluster:
        manager = cluster.controller.chat.manager
        async with asyncio.timeout(PATIENCE_S):
            while not manager._is_preparing:
                await asyncio.sleep(0)
            manager.look_again()
            await checked.wait()
        assert cluster.controller.chat.is_ready
        # What serves stays, without an error, if others need the memory of every other plan.
        checked.clear()
        monkeypatch.setattr(Planning, "new_plan", does_not_fit)
        manager.look_again()
        async with asyncio.timeout(PATIENCE_S):
            await checked.wait()
            while manager._must_plan():
                await asyncio.sleep(0.05)
        assert manager.epoch == 1
        assert "failed" not in {event.kind for event in cluster.controller.events()}
