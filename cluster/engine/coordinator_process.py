"""The coordinator's process: `python -m cluster.engine.coordinator_process`, started by a node. Needs no torch."""

import asyncio
import sys
from pathlib import Path

from cluster.engine.actor import act
from cluster.engine.coordinator import Coordinator
from cluster.nodes.process import prepare
from cluster.trust.identity import Identity


def main(identity_folder: str, node_name: str, host: str, log_style: str) -> None:
    pipe, identity = prepare("coordinator", node_name, log_style), Identity(Path(identity_folder))
    asyncio.run(act("coordinator", Coordinator(identity, host, pipe.send), pipe, identity, host))


if __name__ == "__main__":
    main(*sys.argv[1:])
