"""A node's file server: other nodes of the cluster fetch model files there, and nothing else."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from cluster import wire
from cluster.errors import ModelError, PeerRejected
from cluster.models.store import held_digests, read_held
from cluster.net.channel import Channel, ChannelServer
from cluster.trust.identity import Identity, NodeId

log = structlog.get_logger(__name__)

# This node's own stages come first. A refused node tries the next source.
SERVED_MAX = 4
IDLE_TIMEOUT_S = 30.0
_QUESTION_BYTES_MAX = 2**10


@dataclass(slots=True)
class FileServer:
    """Serves the complete files in `models`.

    All of them belong to models that this cluster's controller deployed.
    """

    models: Path
    identity: Identity
    _server: ChannelServer | None = None
    _served: set[NodeId] = field(default_factory=set)

    async def open(self, host: str) -> int:
        """Listen on this address instead of an earlier one. Return the port. Raise OSError if it is taken."""
        await self.close()
        self._server = ChannelServer("files", self.identity, self._serve)
        return await self._server.open(host, 0)

    async def close(self) -> None:
        if self._server:
            await self._server.close()
            self._server = None

    def disconnect(self, node_ids: frozenset[NodeId]) -> None:
        """End the connections of these machines now."""
        if self._server:
            self._server.disconnect(node_ids)

    async def _serve(self, channel: Channel) -> None:
        """Serve one node until it hangs up. Raise LinkError if it is refused or lost."""
        peer = channel.peer
        if peer is None or peer.role != "node":
            raise PeerRejected("only this cluster's nodes may fetch model files")
        if peer.node_id in self._served or len(self._served) >= SERVED_MAX:
            raise PeerRejected(f"this node already serves {len(self._served)} others")
        channel.message_bytes_max = _QUESTION_BYTES_MAX
        self._served.add(peer.node_id)
        try:
            await self._answer(channel)
        except (ModelError, OSError) as error:
            raise PeerRejected(str(error)) from None
        finally:
            self._served.discard(peer.node_id)

    async def _answer(self, channel: Channel) -> None:
        manifest = ""
        while True:
            message, _ = await channel.receive(IDLE_TIMEOUT_S)
            match message:
                case wire.AskHeld(manifest):
                    held = await asyncio.to_thread(held_digests, self.models, manifest)
                    await channel.send(wire.Held(held))
                case wire.Fetch(sha256, offset) if manifest:
                    content, total_bytes = await asyncio.to_thread(
                        read_held, self.models, manifest, sha256, offset
                    )
                    await channel.send(wire.Part(sha256, offset, total_bytes), content)
                case _:
                    raise PeerRejected(f"{type(message).__name__} is not a request for files")
