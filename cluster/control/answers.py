"""The unread messages of the machines, in order. One machine's flood delays no other machine."""

import asyncio
from collections import Counter

from cluster import wire
from cluster.errors import PeerRejected
from cluster.plans.plan import Member
from cluster.trust.identity import NodeId

# The limit for one machine. The reader may be busy for minutes, and a machine sends only a few messages meanwhile.
UNREAD_MAX = 64

Answer = tuple[Member, wire.Message]


class Answers:
    """A queue with one reader. Adding never waits, since the reader may be waiting for the same machine."""

    def __init__(self) -> None:
        # Each admitted machine can add at most UNREAD_MAX entries.
        self._queue: asyncio.Queue[Answer] = asyncio.Queue()
        self._unread: Counter[NodeId] = Counter()

    def put(self, member: Member, message: wire.Message) -> None:
        """Add a message. Raise PeerRejected if too many of this machine's messages are unread."""
        if self._unread[member.node_id] >= UNREAD_MAX:
            raise PeerRejected(f"{member.name} has {UNREAD_MAX} unread answers, and sent another one")
        self._add(member, message)

    def put_loss(self, member: Member, loss: wire.Failed) -> None:
        """Add the loss of a machine, which is never rejected: it follows up to UNREAD_MAX unread messages."""
        if self._unread[member.node_id] <= UNREAD_MAX:
            self._add(member, loss)

    async def get(self) -> Answer:
        """Return the oldest entry, as soon as there is one."""
        member, message = await self._queue.get()
        self._unread[member.node_id] -= 1
        if not self._unread[member.node_id]:
            del self._unread[member.node_id]
        return member, message

    def clear(self) -> None:
        """Drop all unread messages."""
        while not self._queue.empty():
            self._queue.get_nowait()
        self._unread.clear()

    def _add(self, member: Member, message: wire.Message) -> None:
        self._unread[member.node_id] += 1
        self._queue.put_nowait((member, message))
