"""The process of an embedding model: `python -m cluster.engine.embedder_process`, started by a node's agent."""

import asyncio
import sys
from pathlib import Path

import torch

from cluster import wire
from cluster.compute.devices import pick_device
from cluster.engine.actor import act
from cluster.engine.embedding_reception import EmbeddingReception
from cluster.engine.embedding_table import EmbeddingTable
from cluster.net.channel import ChannelServer
from cluster.nodes.process import AgentPipe, prepare
from cluster.trust.identity import Identity


def main(identity_folder: str, node_name: str, host: str, log_style: str, threads: str) -> None:
    pipe = prepare("embedder", node_name, log_style)
    torch.set_num_threads(int(threads))
    asyncio.run(_serve(pipe, Identity(Path(identity_folder)), host))


async def _serve(pipe: AgentPipe, identity: Identity, host: str) -> None:
    device, _ = pick_device()
    table = EmbeddingTable(host, device, pipe.send)
    server = ChannelServer("embedder", identity, EmbeddingReception(table).serve)
    table.client_port = await server.open(host, 0)
    loop = asyncio.get_running_loop()

    def deliver(message: wire.Message) -> None:
        if isinstance(message, wire.Removed):
            loop.call_soon_threadsafe(server.disconnect, message.node_ids)
        else:
            table.deliver(message)

    await act("embeddings", table, pipe, server, deliver)


if __name__ == "__main__":
    main(*sys.argv[1:])
