"""A node that another process owns: `python -m cluster.nodes.node_process`, with JSON options on stdin.

The options are one line. The node ends when its stdin closes, so that it does not outlive the process that started
it. It writes only one thing to stdout: why it ended.
"""

import asyncio
import contextlib
import os
import signal
import sys

import msgspec
import structlog

from cluster.errors import ClusterError, OwnRemoval
from cluster.nodes.node import Agent
from cluster.nodes.node_options import REMOVED_STATUS, NodeOptions
from runtime.children import leave_with_parent, read_orders
from runtime.logs import configure_logs

log = structlog.get_logger(__name__)


def main() -> int:
    options = msgspec.json.decode(read_orders(), type=NodeOptions)
    configure_logs(options.log_style)
    # Send everything else that prints to the log.
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        asyncio.run(_run(options))
    except (ClusterError, OSError) as error:
        log.error("node ended", node=options.name, reason=str(error))
        with contextlib.suppress(OSError):
            os.write(stdout, str(error).encode())
        return REMOVED_STATUS if isinstance(error, OwnRemoval) else 1
    return 0


async def _run(options: NodeOptions) -> None:
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    leave_with_parent(lambda: loop.call_soon_threadsafe(stopped.set))
    agent = asyncio.create_task(Agent(options).run(), name="agent")
    agent.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    if agent.done():
        agent.result()
    agent.cancel()
    await asyncio.gather(agent, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
