"""Fetching of missing model files: from the nearest node that has them, otherwise from the controller.

Bytes count only once their SHA-256 matches the manifest, whichever node sent them. One source can finish a file
that another has begun. A node that sent wrong bytes gets no more requests.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import structlog

from cluster import wire
from cluster.errors import (
    LinkError,
    LinkLost,
    ModelError,
    ModelInvalid,
    ModelNotFound,
    PeerRejected,
    WeightsMismatch,
)
from cluster.models.manifest import Manifest
from cluster.models.store import PART_BYTES, ModelCopy
from cluster.net.channel import Channel, open_channel
from cluster.trust.identity import Identity, NodeId

log = structlog.get_logger(__name__)

PEERS_MAX = 4
DIAL_TIMEOUT_S = 3.0
# A peer also serves other nodes, and the controller can replace it. Nothing can replace the controller.
PEER_TIMEOUT_S = 10.0
PART_TIMEOUT_S = 60.0


class Source(Protocol):
    """A process that has parts of one model."""

    @property
    def name(self) -> str: ...

    async def part(self, sha256: str, offset: int) -> tuple[wire.Part, bytes]:
        """Return the next bytes. Raise LinkError or ModelError if the source has none."""
        ...


class ControllerSource:
    """The controller, which has every part, over the agent's own connection to it."""

    name = "the controller"

    def __init__(self, report: Callable[[wire.Message], Awaitable[None]]) -> None:
        self._report = report
        self._parts: asyncio.Queue[tuple[wire.Part | wire.NoPart, bytes]] = asyncio.Queue(4)

    def deliver(self, part: wire.Part | wire.NoPart, content: bytes) -> None:
        """Take one requested part. If the queue is full, no task waits for this part."""
        if not self._parts.full():
            self._parts.put_nowait((part, content))

    async def part(self, sha256: str, offset: int) -> tuple[wire.Part, bytes]:
        """Return the requested part, and skip parts of a fetch that was given up.

        Raise LinkLost if the controller is silent, and ModelNotFound if it does not have the part.
        """
        await self._report(wire.Fetch(sha256, offset))
        try:
            async with asyncio.timeout(PART_TIMEOUT_S):
                while True:
                    part, content = await self._parts.get()
                    if (part.sha256, part.offset) != (sha256, offset):
                        continue
                    if isinstance(part, wire.NoPart):
                        raise ModelNotFound(f"the controller has no data for {sha256[:12]}: {part.reason}")
                    return part, content
        except TimeoutError:
            silence = f"the controller sent no data for {sha256[:12]} for {PART_TIMEOUT_S:.0f} s"
            raise LinkLost(silence) from None


@dataclass(frozen=True, slots=True, eq=False)
class PeerSource:
    """Another node, over its own connection."""

    node_id: NodeId
    name: str
    held: frozenset[str]
    channel: Channel

    @classmethod
    async def open(cls, address: wire.Address, identity: Identity, manifest: Manifest) -> "PeerSource":
        """Ask a node what it has. Raise LinkError if it cannot be reached, and PeerRejected if it refuses."""
        channel = await open_channel(address, identity, DIAL_TIMEOUT_S)
        try:
            channel.payload_bytes_max = PART_BYTES
            await channel.send(wire.AskHeld(manifest.digest))
            answer, _ = await channel.receive(PEER_TIMEOUT_S)
            if not isinstance(answer, wire.Held):
                reason = answer.reason if isinstance(answer, wire.Refused) else f"it sent {type(answer).__name__}"
                raise PeerRejected(reason)
        except LinkError:
            await channel.close()
            raise
        return cls(
            address.node_id, f"node {address.node_id} at {channel.address}", frozenset(answer.sha256s), channel
        )

    async def part(self, sha256: str, offset: int) -> tuple[wire.Part, bytes]:
        """Return the requested part. Raise LinkLost or FrameInvalid, and PeerRejected for another answer."""
        await self.channel.send(wire.Fetch(sha256, offset))
        answer, content = await self.channel.receive(PEER_TIMEOUT_S)
        if not isinstance(answer, wire.Part) or (answer.sha256, answer.offset) != (sha256, offset):
            raise PeerRejected(f"{self.name} was asked for {sha256[:12]} and answered something else")
        return answer, content


@dataclass(slots=True)
class Fetcher:
    """Fills this node's copies of models, one order at a time. `liars` are nodes that sent wrong bytes."""

    models: Path
    identity: Identity
    controller: ControllerSource
    liars: set[NodeId] = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_doubted: bool = False

    def doubt(self) -> None:
        """Note that a copy may be damaged, so that it is hashed again before its next use."""
        self._is_doubted = True

    async def fetch(self, manifest: Manifest, tensor_names: list[str], sources: list[wire.Address]) -> str:
        """Get the missing files. Return the folder of the copy. Raise LinkError, ModelError or OSError."""
        async with self._turn:
            copy = ModelCopy(self.models, manifest)
            if self._is_doubted:
                for name in await asyncio.to_thread(copy.drop_damaged, tensor_names):
                    log.warning("file damaged", name=name, remedy="it is fetched again")
                self._is_doubted = False
            if missing := copy.missing(tensor_names):
                peers = await self._open_peers(manifest, sources)
                try:
                    for sha256 in missing:
                        await self._fetch_one(copy, sha256, peers)
                finally:
                    for peer in peers:
                        await peer.channel.close()
        return str(copy.folder)

    async def _open_peers(self, manifest: Manifest, sources: list[wire.Address]) -> list[PeerSource]:
        candidates = [address for address in sources if address.node_id not in self.liars][:PEERS_MAX]
        opened = await asyncio.gather(
            *(PeerSource.open(address, self.identity, manifest) for address in candidates), return_exceptions=True
        )
        peers = []
        for address, peer in zip(candidates, opened, strict=True):
            if isinstance(peer, PeerSource):
                peers.append(peer)
            elif isinstance(peer, LinkError):
                log.info("source skipped", node_id=address.node_id, reason=str(peer))
            else:
                raise peer
        return peers

    async def _fetch_one(self, copy: ModelCopy, sha256: str, peers: list[PeerSource]) -> None:
        givers: set[Source] = set()
        # The source of a part from an earlier run is unknown.
        has_old = copy.offset(sha256) > 0
        complete = False
        while not complete:
            peer = next((peer for peer in peers if sha256 in peer.held), None)
            source: Source = peer or self.controller
            try:
                content, total_bytes = await _next_content(copy, source, sha256)
            except (LinkError, ModelError) as error:
                if peer is None:
                    raise
                log.warning("source given up", source=peer.name, reason=str(error), at_byte=copy.offset(sha256))
                peers.remove(peer)
                await peer.channel.close()
                continue
            givers.add(source)
            try:
                complete = await _append(copy, sha256, content, total_bytes)
            except WeightsMismatch as error:
                if not has_old and givers == {self.controller}:
                    raise
                log.warning("wrong bytes fetched", sources=[giver.name for giver in givers], reason=str(error))
                if not has_old:
                    await self._distrust(givers, peers)
                givers, has_old = set(), False

    async def _distrust(self, givers: set[Source], peers: list[PeerSource]) -> None:
        """Stop using these peers, since one of them gave wrong bytes. The controller can send the rest."""
        for peer in [peer for peer in peers if peer in givers]:
            self.liars.add(peer.node_id)
            peers.remove(peer)
            await peer.channel.close()


async def _next_content(copy: ModelCopy, source: Source, sha256: str) -> tuple[bytes, int]:
    """Return the next bytes of a file and its size. Raise LinkError, or ModelError for impossible bytes."""
    offset, size_bytes = copy.offset(sha256), copy.size_bytes(sha256)
    part, content = await source.part(sha256, offset)
    if part.total_bytes != size_bytes:
        raise ModelInvalid(
            f"{source.name} has {part.total_bytes} bytes of {sha256[:12]}, the manifest says {size_bytes}"
        )
    if len(content) != min(PART_BYTES, size_bytes - offset):
        raise ModelInvalid(f"{source.name} sent {len(content)} bytes of {sha256[:12]} at {offset} of {size_bytes}")
    return content, size_bytes


async def _append(copy: ModelCopy, sha256: str, content: bytes, total_bytes: int) -> bool:
    """Append on a thread that a cancellation waits for, so that the next task finds the file in a final state."""
    appending = asyncio.ensure_future(asyncio.to_thread(copy.append, sha256, content, total_bytes))
    try:
        return await asyncio.shield(appending)
    except asyncio.CancelledError:
        await asyncio.wait([appending])
        raise
