"""What the machines have said and nobody has read yet, in order: one machine's flood keeps nobody else waiting."""

import asyncio
from collections import Counter

from cluster import wire
from cluster.errors import PeerRejected
from cluster.plans.plan import Member
from cluster.trust.identity import NodeId

# Of one machine. Whoever plans may look away for minutes; a machine has a handful of things to say meanwhile.
UNREAD_MAX = 64

Answer = tuple[Member, wire.Message]


class Answers:
    """Read by one task. Nobody who adds something waits, since the reader may be waiting for the same machine."""

    def __init__(self) -> None:
        # Bounded by UNREAD_MAX for each machine that is let in.
        self._queue: asyncio.Queue[Answer] = asyncio.Queue()
        self._unread: Counter[NodeId] = Counter()

    def put(self, member: Member, message: wire.Message) -> None:
        """Raises PeerRejected when too much of this machine is unread."""
        if self._unread[member.node_id] >= UNREAD_MAX:
            raise PeerRejected(f"{member.name} has {UNREAD_MAX} unread answers, and sent another one")
        self._add(member, message)

    def put_loss(self, member: Member, loss: wire.Failed) -> None:
        """That a machine is gone is always heard: with more than UNREAD_MAX unread this is what was said last."""
        if self._unread[member.node_id] <= UNREAD_MAX:
            self._add(member, loss)

    async def get(self) -> Answer:
        """The oldest one, as soon as there is one."""
        member, message = await self._queue.get()
        self._unread[member.node_id] -= 1
        if not self._unread[member.node_id]:
            del self._unread[member.node_id]
        return member, message

    def _add(self, member: Member, message: wire.Message) -> None:
        self._unread[member.node_id] += 1
        self._queue.put_nowait((member, message))
