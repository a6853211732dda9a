"""The process of a head: `python -m cluster.engine.head_process`, started by a node's agent. Needs no torch."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from cluster.engine.head import Head
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
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    failures: list[BaseException] = []
    thread = threading.Thread(
        target=_run, args=(head, failures, lambda: _set(loop, stopped)), name="pipeline", daemon=True
    )
    thread.start()
    pipe.listen(head.deliver, lambda: _set(loop, stopped), lambda: head.vitals)
    await stopped.wait()
    head.stop()
    await asyncio.to_thread(thread.join, 3)
    await door.close()
    if failures:
        raise failures[0]


def _run(head: Head, failures: list[BaseException], ended: Callable[[], None]) -> None:
    """A head whose thread has died must not look alive: its process ends, and the agent reports it."""
    try:
        head.run()
    except BaseException as error:  # noqa: BLE001 - raised again on the main thread
        failures.append(error)
    ended()


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed: we are ending anyway.
        loop.call_soon_threadsafe(event.set)


if __name__ == "__main__":
    main(*sys.argv[1:])
