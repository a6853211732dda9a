"""The worker's process: prepares litellm, then serves its application until told to stop."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from gateway.lanes.cloud.worker import adapters
from gateway.lanes.cloud.worker.app import CloudApp
from gateway.lanes.cloud.worker.providers import Orders
from runtime.memory import settle
from runtime.workers.lifecycle import WorkerServer

ADAPTER_THREADS = 8


def serve(orders: Orders) -> None:
    """Serve until told to stop; return when every answer is sent or its time is over."""
    asyncio.run(_serve(orders))


async def _serve(orders: Orders) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(ADAPTER_THREADS, thread_name_prefix="adapter"))
    await adapters.warm_up(orders.configuration.models.values())
    settle()
    app = CloudApp(orders.configuration)
    await WorkerServer(app, app.health, orders.configuration.limits.drain_s).serve_at(orders.socket_path)
