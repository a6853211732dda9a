"""The coordinator's process: `python -m cluster.engine.coordinator_process`, started by a node. Needs no torch."""

import asyncio
import sys
from pathlib import Path

from cluster.engine.actor import act
from cluster.engine.coordinator import Coordinator
from cluster.engine.reception import Reception
from cluster.net.channel import ChannelServer
from cluster.nodes.process import AgentPipe, prepare
from cluster.trust.identity import Identity


def main(identity_folder: str, node_name: str, host: str, log_style: str) -> None:
    pipe = prepare("coordinator", node_name, log_style)
    asyncio.run(_serve(pipe, Identity(Path(identity_folder)), host))


async def _serve(pipe: AgentPipe, identity: Identity, host: str) -> None:
    coordinator = Coordinator(identity, host, pipe.send)
    server = ChannelServer("coordinator", identity, Reception(coordinator).serve)
    coordinator.client_port = await server.open(host, 0)
    await act("pipeline", coordinator, pipe, server, coordinator.deliver)


if __name__ == "__main__":
    main(*sys.argv[1:])
