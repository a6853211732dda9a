"""The process of a head: `python -m cluster.head_process`, started by a node's agent. Needs no torch."""

import asyncio
import sys
import threading
from pathlib import Path

from cluster.channel import Door
from cluster.head import Head
from cluster.identity import Identity
from cluster.process import AgentPipe, prepare
from cluster.reception import Reception


def main(identity_folder: str, node_name: str, host: str, log_style: str) -> None:
    pipe = prepare("head", node_name, log_style)
    asyncio.run(_serve(pipe, Identity(Path(identity_folder)), host))


async def _serve(pipe: AgentPipe, identity: Identity, host: str) -> None:
    head = Head(identity, host, pipe.send)
    door = Door("head", identity.server_context(), Reception(head).serve)
    head.client_port = await door.open(host, 0)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=head.run, name="pipeline", daemon=True)
    thread.start()
    pipe.listen(head.deliver, lambda: _set(loop, stopped))
    await stopped.wait()
    head.stop()
    await asyncio.to_thread(thread.join, 3)
    await door.close()


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


if __name__ == "__main__":
    main(*sys.argv[1:])
