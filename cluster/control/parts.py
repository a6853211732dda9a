"""The controller's answers to one node's fetches: parts of model files, or why there are none."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from cluster import wire
from cluster.errors import LinkLost, ModelError
from cluster.net.channel import Channel

log = structlog.get_logger(__name__)

FETCHES_MAX = 4

ReadPart = Callable[[str, int], tuple[bytes, int]]
"""(sha256, offset) -> (content, total size in bytes). Raises ModelError or OSError."""


@dataclass(slots=True)
class Parts:
    """Reads and sends parts beside the connection's other traffic. Stopping it does not wait."""

    channel: Channel
    read_part: ReadPart
    _sending: set[asyncio.Task[None]] = field(default_factory=set)

    async def answer(self, fetch: wire.Fetch) -> None:
        """Begin to answer a fetch. Refuse it at once if there are too many. Raise LinkLost."""
        if len(self._sending) >= FETCHES_MAX:
            await self._refuse(fetch, f"{FETCHES_MAX} other parts are already on their way")
            return
        task = asyncio.create_task(self._send(fetch))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def stop(self) -> None:
        for task in self._sending:
            task.cancel()

    async def _send(self, fetch: wire.Fetch) -> None:
        try:
            try:
                content, total_bytes = await asyncio.to_thread(self.read_part, fetch.sha256, fetch.offset)
            except (ModelError, OSError) as error:
                log.warning("fetch refused", peer=self.channel.address, reason=str(error))
                await self._refuse(fetch, str(error) if isinstance(error, ModelError) else "it cannot be read")
            else:
                await self.channel.send(wire.Part(fetch.sha256, fetch.offset, total_bytes), content)
        except LinkLost as error:
            log.warning("fetch failed", peer=self.channel.address, reason=str(error))

    async def _refuse(self, fetch: wire.Fetch, reason: str) -> None:
        await self.channel.send(wire.NoPart(fetch.sha256, fetch.offset, reason))
