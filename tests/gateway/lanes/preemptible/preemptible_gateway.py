"""Preemptible requests at a gateway inside the test's process, before a backend that speaks slowly to them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.api.admin import HEADER
from tests.gateway.http.edges import SSE, Answered, Backend, Edge, Writer, chunk, said, until
from tests.gateway.http.edges import backend as serving
from tests.gateway.requests.roads import receive, road, send, stream

SLOTS = 2


async def patiently(body: bytes, writer: Writer) -> None:
    """Preemptible requests get word after word without end, or wait for the first; the owner is answered at once."""
    question = json.loads(body)
    text = question["messages"][0]["content"] if "messages" in question else question["prompt"]
    if text == "wait":
        await asyncio.Event().wait()
    if text == "talk":
        writer.write(SSE)
        while True:
            # In pieces that are no events, as a network may bring them.
            event = chunk(said("word"))
            writer.write(event[:20])
            await asyncio.sleep(0.005)
            writer.write(event[20:])
            await asyncio.sleep(0.005)
    writer.write(stream("It ", "turns."))


@dataclass(frozen=True, slots=True)
class Instance:
    """A gateway, its backend, and a key for preemptible requests."""

    running: Edge
    backend: Backend
    key: str

    async def come(self, text: str = "talk", **fields: Any) -> "asyncio.Task[Answered]":
        """Send a preemptible request; return once it is under way, or was refused."""
        preemptible_jobs = len(self.running.services.preemptible_jobs.stays)
        messages = [{"role": "user", "content": text}]
        asked = await send(self.running, self.key, stream=True, **({"messages": messages} | fields))
        task = asyncio.create_task(receive(asked))
        await until(
            lambda: task.done() or len(self.running.services.preemptible_jobs.stays) > preemptible_jobs, 60
        )
        return task

    async def own(self) -> Answered:
        return await receive(await send(self.running, stream=True))

    async def admin(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await admin(self.running, method, path, **more)


async def admin(running: Edge, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {HEADER: running.services.admin_token}
    async with httpx.AsyncClient(trust_env=False, timeout=60, headers=headers) as client:
        return await client.request(method, f"http://127.0.0.1:{running.port}{path}", **more)


@asynccontextmanager
async def instance(
    folder: Path, backend: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Instance]:
    async with (
        serving(patiently) as first,
        road(folder, first.base_url, backend={"slots": SLOTS} | (backend or {}), **sections) as running,
    ):
        made = await admin(running, "POST", "/admin/preemptible-key")
        yield Instance(running, first, made.json()["key"])
