"""The process of an embedding model: `python -m cluster.engine.embedder_process`, started by a node's agent."""

import asyncio
import sys
from pathlib import Path

import torch

from cluster.compute.devices import pick_device
from cluster.engine.actor import act
from cluster.engine.embedding_table import EmbeddingTable
from cluster.nodes.process import prepare
from cluster.trust.identity import Identity


def main(identity_folder: str, node_name: str, host: str, log_style: str, threads: str) -> None:
    pipe = prepare("embedder", node_name, log_style)
    torch.set_num_threads(int(threads))
    table = EmbeddingTable(host, pick_device()[0], pipe.send)
    asyncio.run(act("embedder", table, pipe, Identity(Path(identity_folder)), host))


if __name__ == "__main__":
    main(*sys.argv[1:])
