"""KV caches of real nodes survive the end of a stage's process, and of everything."""

import asyncio
from pathlib import Path

import pytest

from cluster.generation import TokenPrompt
from cluster.plans.plan import BLOCK_TOKENS
from tests.cluster.test_steps import prompt_of
from tests.clusters import PATIENCE_S, Answer, Cluster, child, running_cluster

pytestmark = pytest.mark.anyio

PROMPT = TokenPrompt(prompt_of(600, 1))
BLOCKS = len(PROMPT.token_ids) // BLOCK_TOKENS


def saved_blocks(folder: Path, node: int) -> int:
    return len(list(folder.glob(f"nodes/node-{node}/kv/*/*")))


async def saved(folder: Path, nodes: int) -> None:
    """Wait until every node has the prompt's blocks on disk."""
    async with asyncio.timeout(PATIENCE_S):
        while min(saved_blocks(folder, node) for node in range(1, nodes + 1)) < BLOCKS:
            await asyncio.sleep(0.02)


async def replaced(cluster: Cluster) -> None:
    """End the stage process of the first node, and wait for the next pipeline."""
    epoch = cluster.controller.topology().epoch
    stage = child(cluster.node_process(1), "stage")
    assert stage
    stage.kill()
    async with asyncio.timeout(PATIENCE_S):
        while cluster.controller.topology().epoch == epoch or not cluster.controller.chat.is_ready:
            await asyncio.sleep(0.02)


def check(restored: Answer, computed: Answer) -> None:
    """On a busy machine a stage may find the disk slow, and stop. The first block has been read in any case."""
    assert restored.token_ids == computed.token_ids
    assert 0 < restored.done.cached_tokens <= BLOCKS * BLOCK_TOKENS


@pytest.mark.parametrize("nodes", [1, 2])
async def test_prompts_are_read_after_restarts(tmp_path: Path, nodes: int) -> None:
    async with running_cluster(tmp_path, nodes, kv_disk_gb=1.0) as cluster:
        computed = await cluster.ask(PROMPT)
        assert computed.done.cached_tokens == 0
        await saved(tmp_path, nodes)
        await replaced(cluster)
        restored = await cluster.ask(PROMPT)
        check(restored, computed)
    async with running_cluster(tmp_path, nodes, kv_disk_gb=1.0) as cluster:
        restored = await cluster.ask(PROMPT)
        check(restored, computed)
    async with running_cluster(tmp_path, nodes) as cluster:
        again = await cluster.ask(PROMPT)
        assert (again.token_ids, again.done.cached_tokens) == (computed.token_ids, 0)
        assert saved_blocks(tmp_path, 1) == 0, "a node that saves nothing keeps nothing"
