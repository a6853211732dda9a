"""The coordinator's process: `python -m cluster.engine.coordinator_process`, started by a node. Needs no torch."""

import asyncio
import sys
from pathlib import Path

from cluster.engine.actor import act
from cluster.engine.coordinator import Head
from cluster.engine.reception import Reception
from cluster.net.channel import Door
from cluster.nodes.process import AgentPipe, prepare
from cluster.trust.identity import Identity


def main(identity_folder: str, node_name: str, host: str, log_style: str) -> None:
    pipe = prepare("head", node_name, log_style)
    asyncio.run(_serve(pipe, Identity(Path(identity_folder)), host))


async def _serve(pipe: AgentPipe, identity: Identity, host: str) -> None:
    head = Head(identity, host, pipe.send)
    door = Door("head", identity, Reception(head).serve)
    head.client_port = await door.open(host, 0)
    await act("pipeline", head, pipe, door, head.deliver)


if __name__ == "__main__":
    main(*sys.argv[1:])
