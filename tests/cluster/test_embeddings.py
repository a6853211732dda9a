"""Embedding models on nodes: the reference's vectors through real processes, refusals by name, losses."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
import pytest
import structlog
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from cluster import wire
from cluster.client import ModelClient
from cluster.control.embedder_place import place_embedder
from cluster.controller import Controller
from cluster.embedding import CONTEXT_TOKENS_MAX, INPUTS_MAX, Embeddings, EmbedRequest
from cluster.engine.embedding_queue import WAITING_TOKENS_MAX, EmbeddingQueue, Job
from cluster.engine.embedding_table import EmbeddingTable
from cluster.engine.tickets import REQUESTS_MAX
from cluster.errors import (
    ClusterBusy,
    ContextLengthExceeded,
    GenerationError,
    ModelDoesNotFit,
    ModelError,
    ProcessLost,
    RequestInvalid,
)
from cluster.machine import Device, Machine
from cluster.models.manifest import read_config
from cluster.models.model_card import read_card
from cluster.net.channel import Channel, ChannelServer, open_channel
from cluster.nodes.local_nodes import LocalNodes
from cluster.nodes.node import Agent
from cluster.nodes.node_options import NodeOptions
from cluster.plans.needs import StageMemory, stage_memory
from cluster.plans.plan import BLOCK_TOKENS, Member, plan_stages
from cluster.trust.addresses import Target
from cluster.trust.authority import Authority
from cluster.trust.identity import Identity, NodeId
from tests.cluster.test_joining import node_id
from tests.clusters import DEMO_MODEL, PATIENCE_S, Cluster, child
from tests.embedding_models import bert, expected, put, qwen3, save

pytestmark = pytest.mark.anyio

TEXTS = ["w17 w30", "w4", " ".join(f"w{at}" for at in range(10, 60)), "w99"]
TOKENS = [[2, 17, 30, 3], [2, 4, 3], [2, *range(10, 60), 3], [2, 99, 3]]

_ids = itertools.count(1)


@asynccontextmanager
async def embedding_cluster(folder: Path, model: Path, nodes: int) -> AsyncIterator[Cluster]:
    """Local nodes and no chat model."""
    controller = Controller(folder / "cluster", expected_nodes=nodes)
    port = await controller.start("127.0.0.1", 0)
    local = LocalNodes(nodes, folder / "nodes", 0.5)
    try:
        await local.start(Target("127.0.0.1", port), [controller.new_token() for _ in range(nodes)])
        async with asyncio.timeout(2 * PATIENCE_S):
            while len(controller.topology().members) < nodes:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.2)  # All hellos have arrived by then: a pull takes longer.
            await controller.embeddings.load_model(str(model))
            await controller.embeddings.readiness.wait(PATIENCE_S)
        yield Cluster(controller, local, port)
    finally:
        await controller.stop()
        await local.stop()


def vectors(answer: Embeddings) -> torch.Tensor:
    return torch.frombuffer(bytearray(answer.vectors), dtype=torch.float32).view(-1, answer.dimensions)


async def embed(controller: Controller, *texts: str, **fields: Any) -> Embeddings:
    request = EmbedRequest(id=f"test-{next(_ids)}", texts=list(texts), **fields)
    return await controller.embeddings.embed(request)


async def test_a_machine_fetches_an_encoder_and_answers_as_the_reference(tmp_path: Path) -> None:
    """The node shares no files, the checkpoint has an unused tensor, and many requests arrive at once."""
    reference = save(tmp_path / "model", bert(), "mean_tokens", normalize=True)
    file = tmp_path / "model" / "model.safetensors"
    save_file(load_file(file) | {"embeddings.position_ids": torch.arange(64)}, file, {"format": "pt"})
    controller = Controller(tmp_path / "cluster")
    port = await controller.start("127.0.0.1", 0)
    options = NodeOptions(
        name="desk",
        folder=str(tmp_path / "desk"),
        controller=Target("127.0.0.1", port),
        token=controller.new_token(),
        share=0.5,
    )
    agent = asyncio.create_task(Agent(options).run())
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            await controller.embeddings.load_model(str(tmp_path / "model"))
            await controller.embeddings.readiness.wait(PATIENCE_S)
            wanted = expected(reference, "mean_tokens", TOKENS, normalize=True)
            together = await asyncio.gather(*(embed(controller, text) for text in TEXTS * 5))
        for at, answer in enumerate(together):
            torch.testing.assert_close(vectors(answer), wanted[[at % 4]], rtol=1e-4, atol=1e-5)
            assert answer.token_counts == [len(TOKENS[at % 4])]
        as_tokens = await controller.embeddings.embed(EmbedRequest(id="tokens", token_ids=TOKENS))
        torch.testing.assert_close(vectors(as_tokens), wanted, rtol=1e-4, atol=1e-5)
        assert as_tokens.compute_ns > 0
        topology = controller.topology()
        [embedder] = topology.deployments
        assert (embedder.model, embedder.machines) == ("model", (topology.members[0].node_id,))
    finally:
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)
        await controller.stop()


async def refusal(controller: Controller, request: EmbedRequest) -> tuple[type[GenerationError], str]:
    with pytest.raises(GenerationError) as caught:
        await controller.embeddings.embed(request)
    assert caught.value.param in ("input", "dimensions")
    return type(caught.value), caught.value.message


@pytest.mark.slow
async def test_a_decoder_embeds_refuses_and_survives_its_machine(tmp_path: Path) -> None:
    reference = save(tmp_path / "model", qwen3(), "lasttoken", normalize=True)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    put(tmp_path / "model" / "config.json", config | {"matryoshka_dimensions": [16, 32]})
    async with embedding_cluster(tmp_path, tmp_path / "model", nodes=2) as cluster:
        controller = cluster.controller
        wanted = expected(reference, "lasttoken", TOKENS, normalize=True)
        torch.testing.assert_close(vectors(await embed(controller, *TEXTS)), wanted, rtol=1e-4, atol=1e-5)
        short = vectors(await embed(controller, *TEXTS, dimensions=16))
        torch.testing.assert_close(
            short, torch.nn.functional.normalize(wanted[:, :16], dim=-1), rtol=1e-4, atol=1e-5
        )
        for request, kind, said in (
            (EmbedRequest(id="1", texts=["w4", "w5 " * 70]), ContextLengthExceeded, r"64 tokens, input[1] has 72"),
            (EmbedRequest(id="2", texts=["w4", ""]), RequestInvalid, "input[1]: must not be empty"),
            (EmbedRequest(id="3"), RequestInvalid, "must not be empty"),
            (EmbedRequest(id="4", texts=["w4"] * (INPUTS_MAX + 1)), RequestInvalid, "2049 inputs"),
            (EmbedRequest(id="5", token_ids=[[2, 300]]), RequestInvalid, "vocabulary of 300"),
            (EmbedRequest(id="6", texts=["w4"], dimensions=17), RequestInvalid, "supports 16, 32, 64, not 17"),
        ):
            found, message = await refusal(controller, request)
            assert found is kind
            assert said in message
        await only_gateways_may_ask(controller, Identity(tmp_path / "nodes" / "node-1" / "identity"))
        await survive_losses(cluster, wanted)


async def only_gateways_may_ask(controller: Controller, node: Identity) -> None:
    serving = controller.embeddings._serving
    assert serving
    host, _, port = serving.client._channel.address.rpartition(":")
    channel = await open_channel(wire.Address(serving.member.node_id, host, int(port)), node)
    await channel.send(wire.Embed(EmbedRequest(id="1", texts=["w4"])))
    answer, _ = await channel.receive(PATIENCE_S)
    assert isinstance(answer, wire.Refused)
    assert "only gateways" in answer.reason
    await channel.close()


async def survive_losses(cluster: Cluster, wanted: torch.Tensor) -> None:
    """The process is lost in the middle of a long request, then its whole machine."""
    controller = cluster.controller
    for lost in ("process", "machine"):
        machine = controller.embeddings.machine
        assert machine
        agent = cluster.node_process(int(machine.name.removeprefix("node-")))
        process = child(agent, "embedder")
        assert process
        long = asyncio.create_task(embed(controller, *[TEXTS[2]] * 600))
        await asyncio.sleep(0.2)
        assert not long.done()
        victims = [process] if lost == "process" else [process, agent]
        for victim in victims:
            victim.kill()
        async with asyncio.timeout(PATIENCE_S):
            answer = await embed(controller, *TEXTS)
            assert len((await long).token_counts) == 600
        torch.testing.assert_close(vectors(answer), wanted, rtol=1e-4, atol=1e-5)
        now = controller.embeddings.machine
        assert now
        assert now.node_id != machine.node_id
        await asyncio.to_thread(psutil.wait_procs, victims, 5)


async def test_other_models_are_refused_before_any_machine_gets_an_order(tmp_path: Path) -> None:
    save(tmp_path / "model", qwen3(), "lasttoken", normalize=True)
    (tmp_path / "model" / "modules.json").unlink()
    controller = Controller(tmp_path / "cluster")
    with pytest.raises(ModelError, match=r"no modules\.json"):
        await controller.embeddings.load_model(str(tmp_path / "model"))
    assert controller.embeddings.readiness.status[0] == "failed"


def member(name: str, gib: float) -> Member:
    memory = int(gib * 2**30)
    machine = Machine(
        system="Linux",
        architecture="x86_64",
        cores=2,
        memory_total_bytes=memory,
        memory_usable_bytes=memory,
        device=Device("cpu", "test", memory),
    )
    return Member(NodeId(name), name, machine)


def test_the_machine_with_the_most_free_memory_embeds() -> None:
    small, large, full = member("a", 1), member("b", 2), member("c", 9)
    held = {full.node_id: StageMemory(8 * 2**30, 2**30)}
    place = place_embedder("m", 2**29, [small, large, full], held)
    assert place.member == large
    assert "b embeds with m: 2.00 GiB are usable there, 0.50 GiB are needed" in place.reason
    assert place_embedder("m", 2**29, [small, large], {}, {large.node_id}).member == small
    assert place_embedder("m", 3 * 2**29, [small, large], {}, {large.node_id}).member == large
    assert place_embedder("m", 2**29, [member("z", 1), small], {}).member == small
    with pytest.raises(ModelDoesNotFit, match="1024 MiB short"):
        place_embedder("m", 3 * 2**30, [small, large], {})
    # Plans give the cache all remaining memory, so no machine may have room beside it.
    tight = place_embedder("m", 3 * 2**30, [small, large, full], held)
    assert tight.member == full
    assert "beside the planned cache" in tight.reason
    with pytest.raises(ModelDoesNotFit):
        place_embedder("m", 3 * 2**30, [full], {full.node_id: StageMemory(8 * 2**30, 7 * 2**30)})


def test_only_owners_machines_see_texts() -> None:
    small, large = member("a", 1), member("b", 2)
    place = place_embedder("m", 2**29, [small, large], {}, owners={small.node_id})
    assert place.member == small
    assert "lets no other machines see texts" in place.reason
    assert place_embedder("m", 2**29, [small, large], {}, {small.node_id}, {small.node_id}).member == small
    with pytest.raises(ModelDoesNotFit, match=r"cluster\.owners"):
        place_embedder("m", 3 * 2**29, [small, large], {}, owners={small.node_id})


def test_a_machine_holds_all_its_stages_and_the_cache() -> None:
    card = read_card(read_config(DEMO_MODEL))
    plan = plan_stages("m", card, [member("a", 1), member("b", 1)], slots=2, stages_min=2)
    beside = msgspec.structs.replace(
        plan,
        stages=plan.stages[:1],
        standbys=tuple(msgspec.structs.replace(stage, member=plan.stages[1].member) for stage in plan.stages),
    )
    held = stage_memory(beside, card)
    serving, standby = (held[stage.member.node_id] for stage in plan.stages)
    first = plan.stages[0].spec
    token_bytes = first.end_layer * card.kv_bytes_per_token("fp32", 0) + 4 * card.hidden
    spare_tokens = plan.kv_blocks * BLOCK_TOKENS - card.context_tokens
    assert spare_tokens > 0
    assert serving.planned_bytes - serving.least_bytes == spare_tokens * token_bytes
    assert serving.least_bytes > plan.stages[0].weight_bytes + card.context_tokens * token_bytes
    assert standby.least_bytes > sum(stage.weight_bytes for stage in plan.stages)
    assert standby.planned_bytes - standby.least_bytes >= spare_tokens * token_bytes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_counts": [3]}, "2 inputs were embedded as 1"),
        ({"token_counts": [3, 0]}, "0 to 3 tokens"),
        ({"token_counts": [3, CONTEXT_TOKENS_MAX + 1]}, f"to {CONTEXT_TOKENS_MAX + 1} tokens"),
        ({"token_counts": [3, 5]}, "wrong lengths"),
        ({"dimensions": 8}, "8 dimensions, 4 were asked for"),
        ({"dimensions": 0, "vectors": b""}, "0 dimensions"),
        ({"vectors": bytes(31)}, "31 bytes are not 2 vectors of 4"),
        ({"compute_ns": -1}, "claims -1 ns of computing"),
        ({"compute_ns": 3600 * 10**9}, "claims 3600000000000 ns of computing"),
    ],
)
async def test_a_lying_embedder_is_lost(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """Its answer is billed, so forged token counts and computing times are rejected."""
    authority = Authority.open(tmp_path / "authority")
    node, gateway = (authority.issue_identity(tmp_path / role, role, role) for role in ("node", "gateway"))
    honest: dict[str, Any] = {"vectors": bytes(32), "dimensions": 4, "token_counts": [3, 4], "compute_ns": 1}

    async def serve(channel: Channel) -> None:
        for fields in (honest, honest | changes):
            message, _ = await channel.receive(PATIENCE_S)
            assert isinstance(message, wire.Embed)
            vectors = fields.pop("vectors")
            await channel.send(wire.Embedded(message.request.id, **fields), vectors)
        await channel.receive(PATIENCE_S)

    door = ChannelServer("embedder", node, serve)
    address = wire.Address(node_id(node), "127.0.0.1", await door.open("127.0.0.1", 0))
    client = await ModelClient.open(address, gateway, "embeddings", "embedder")
    request = EmbedRequest(id="1", token_ids=[[1, 2, 3], [4, 5, 6, 7]], dimensions=4)
    try:
        assert (await client.embed(request)).token_counts == [3, 4]
        with structlog.testing.capture_logs() as logs, pytest.raises(ProcessLost):
            await client.embed(request)
        assert reason in str(logs)
    finally:
        await client.close()
        await door.close()


async def test_a_cancelled_close_leaves_no_socket(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path / "authority")
    node, gateway = (authority.issue_identity(tmp_path / role, role, role) for role in ("node", "gateway"))

    async def serve(channel: Channel) -> None:
        await channel.receive(PATIENCE_S)

    door = ChannelServer("embedder", node, serve)
    address = wire.Address(node_id(node), "127.0.0.1", await door.open("127.0.0.1", 0))
    client = await ModelClient.open(address, gateway, "embeddings", "embedder")
    try:
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert client._channel.writer.transport.is_closing()
    finally:
        await door.close()


async def test_a_slow_link_takes_large_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload has time for its size: thousands of vectors take a while on a home connection."""
    monkeypatch.setattr("cluster.net.channel.SEND_TIMEOUT_S", 0.1)
    monkeypatch.setattr("cluster.net.channel.SLOWEST_BYTES_PER_S", 2**20)
    authority = Authority.open(tmp_path / "authority")
    node, gateway = (authority.issue_identity(tmp_path / role, role, role) for role in ("node", "gateway"))
    vectors = bytes(32 * 2**20)

    async def serve(channel: Channel) -> None:
        await channel.send(wire.Embedded("1", 4, [1], 1), vectors)
        await channel.receive(PATIENCE_S)

    door = ChannelServer("embedder", node, serve)
    address = wire.Address(node_id(node), "127.0.0.1", await door.open("127.0.0.1", 0))
    channel = await open_channel(address, gateway)
    channel.payload_bytes_max = wire.PAYLOAD_BYTES_MAX
    try:
        await asyncio.sleep(0.5)
        _, payload = await channel.receive(PATIENCE_S)
        assert payload == vectors
    finally:
        await channel.close()
        await door.close()


def job(number: int, lengths: Sequence[int]) -> Job:
    return Job(str(number), [[1] * length for length in lengths], 4, lambda *_: None)


@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=8), min_size=1, max_size=8))
def test_texts_are_computed_once_and_short_requests_do_not_wait_for_long_ones(
    requests: list[list[int]],
) -> None:
    queue = EmbeddingQueue()
    jobs = [job(number, lengths) for number, lengths in enumerate(requests)]
    for one in jobs:
        queue.add(one)
    order: list[tuple[Job, int]] = []
    while texts := queue.next_pass(32):
        assert len(texts) == 1 or sum(len(one.token_ids[at]) for one, at in texts) <= 32
        order += texts
    for one in jobs:
        assert [at for other, at in order if other is one] == list(range(len(one.token_ids)))
    # In rounds: no request begins a second text before every request has begun its first.
    assert [at for _, at in order] == sorted(at for _, at in order)


def test_requests_of_disconnected_callers_are_not_computed() -> None:
    queue, first, second = EmbeddingQueue(), job(1, [3, 3]), job(2, [3])
    queue.add(first)
    queue.add(second)
    queue.drop(first.request_id)
    assert queue.next_pass(32) == [(second, 0)]


def test_the_queue_is_bounded() -> None:
    queue = EmbeddingQueue()
    queue.add(job(0, [WAITING_TOKENS_MAX - 10]))
    with pytest.raises(ClusterBusy, match=f"{WAITING_TOKENS_MAX - 10} tokens are already waiting"):
        queue.add(job(1, [11]))
    with pytest.raises(RequestInvalid, match="already running"):
        queue.add(job(0, [1]))
    queue.drop("0")
    for number in range(REQUESTS_MAX):
        queue.add(job(number, [3]))
    with pytest.raises(ClusterBusy, match=f"{REQUESTS_MAX} requests"):
        queue.add(job(REQUESTS_MAX, [3]))


async def test_requests_in_the_inbox_count_as_waiting() -> None:
    """A pass may take long, and nothing reads the inbox meanwhile."""
    table = EmbeddingTable("127.0.0.1", torch.device("cpu"), lambda _: None)
    table._loaded = cast("Any", (None, None))
    for number in range(REQUESTS_MAX):
        table.deliver(job(number, [3]))
    with pytest.raises(ClusterBusy, match=f"{REQUESTS_MAX} requests"):
        await table.prepare(EmbedRequest(id="one more", texts=["text"]), lambda *_: None)
