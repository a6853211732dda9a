"""The life of an actor's process: a thread computes, the event loop serves callers, the agent's pipe ends it."""

import asyncio
import contextlib
import threading

from cluster.engine.reception import Actor, Reception
from cluster.net.channel import ChannelServer
from cluster.nodes.process import AgentPipe
from cluster.trust.identity import Identity

_STOP_S = 3.0


async def act(name: str, actor: Actor, pipe: AgentPipe, identity: Identity, host: str) -> None:
    """Run the actor on a thread until its agent is gone or the actor ends. Raise the actor's error, if any.

    An actor whose thread has died must not look alive. Its process therefore ends, and the agent reports the end.
    """
    server = ChannelServer(name, identity, Reception(actor).serve)
    actor.client_port = await server.open(host, 0)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    failures: list[BaseException] = []

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: this process is ending anyway.
            loop.call_soon_threadsafe(stopped.set)

    def run() -> None:
        try:
            actor.run()
        except BaseException as error:  # noqa: BLE001 - raised again on the main thread
            failures.append(error)
        stop()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    pipe.listen(actor.deliver, stop, lambda: actor.vitals)
    await stopped.wait()
    actor.stop()
    await asyncio.to_thread(thread.join, _STOP_S)
    await server.close()
    if failures:
        raise failures[0]
