"""Exchange records with other gateways until all know the same.

Each peer has its own task, so one that hangs or lies delays no other. Our own new records, and all
statements about keys, are sent at once; other records are found by comparing summaries from time to time.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from market.errors import MarketError
from market.network.errors import Unreachable
from market.network.gossip_wire import (
    BODY_BYTES_MAX,
    GossipDigest,
    GossipDigestAnswer,
    GossipRecords,
    GossipRecordsAnswer,
    raw_of,
    read,
    written,
)
from market.network.known import STATEMENTS
from market.network.outbound import Outbound
from market.network.record_keeper import RecordKeeper
from market.network.room import OWN
from market.protocol.records.envelope import Record

_log = logging.getLogger(__name__)

EVERY_S = 15.0
_PAUSE_S_MAX = 300.0
_UPKEEP_S = 30.0
_ANSWER_S = 20.0
# Maximum number of comparisons in a row, if one of them cannot hold all that there is to send.
_AT_ONCE_MAX = 16
_URGENT_MAX = 1000
_JSON = {"content-type": "application/json"}

A = TypeVar("A", bound=msgspec.Struct)


@dataclass(slots=True)
class _Peer:
    url: str
    failures: int = 0
    listings: dict[str, bytes] = field(default_factory=dict)
    identities: dict[str, None] = field(default_factory=dict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Gossip:
    """Exchange records with the gateways at these addresses. Belongs to the event loop that runs `run`.

    Args:
        every_s: time between two comparisons with one peer; longer after failures.
        chance: random number from 0 to 1, so that not all gateways ask at once.
    """

    def __init__(
        self,
        keeper: RecordKeeper,
        outbound: Outbound,
        peers: Iterable[str],
        *,
        every_s: float = EVERY_S,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._keeper = keeper
        self._outbound = outbound
        self._peers = [_Peer(url) for url in dict.fromkeys(each.rstrip("/") for each in peers)]
        self._every_s = every_s
        self._chance = chance
        self._loop: asyncio.AbstractEventLoop | None = None
        keeper.watch(self._hear)

    async def run(self) -> None:
        """Exchange until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tidy(), name="gossip upkeep")
                for peer in self._peers:
                    tasks.create_task(self._converse(peer), name=f"gossip with {peer.url}")
        finally:
            self._loop = None

    async def publish(self, records: Sequence[Record]) -> int:
        """Keep our own records and send them to all peers at once; return how many were new."""
        return await asyncio.to_thread(self._keeper.add, [each.raw for each in records], OWN)

    async def exchange(self, url: str) -> int:
        """Compare with one peer until neither has anything new for the other; return how many records came.

        Raises:
            Unreachable: the peer did not answer.
            RecordInvalid: the peer's answer is invalid.
        """
        came = 0
        for _ in range(_AT_ONCE_MAX):
            taken, sent = await self._compare(url)
            came += taken
            if not taken and not sent:
                break
        return came

    async def _compare(self, url: str) -> tuple[int, int]:
        mine = await asyncio.to_thread(self._keeper.summary)
        answer = await self._ask(url, "digest", GossipDigest(mine), GossipDigestAnswer)
        heard = raw_of(answer.records)
        taken = await asyncio.to_thread(self._keeper.add, heard, url)
        lacking = await asyncio.to_thread(self._keeper.differing, answer.summary)
        known = set(heard)
        telling = written(each.raw for each in lacking if each.raw not in known)
        return taken, await self._tell(url, telling)

    async def _tell(self, url: str, telling: tuple[str, ...]) -> int:
        if not telling:
            return 0
        return (await self._ask(url, "records", GossipRecords(telling), GossipRecordsAnswer)).taken

    async def _ask(self, url: str, what: str, body: msgspec.Struct, shape: type[A]) -> A:
        reply = await self._outbound.ask(
            f"{url}/market/v1/gossip/{what}",
            msgspec.json.encode(body),
            headers=_JSON,
            timeout_s=_ANSWER_S,
            bytes_max=BODY_BYTES_MAX,
        )
        if reply.status != 200:
            raise Unreachable(f"{url} answered gossip with status {reply.status}")
        return read(reply.body, shape)

    def _hear(self, records: Sequence[Record], source: str) -> None:
        """Runs in the thread that called the keeper."""
        loop = self._loop
        urgent = [each for each in records if source == OWN or each.kind in STATEMENTS]
        if loop is not None and urgent:
            loop.call_soon_threadsafe(self._hurry, urgent, source)

    def _hurry(self, urgent: Sequence[Record], source: str) -> None:
        for peer in self._peers:
            # Records that do not fit here are found by the next comparison.
            if peer.url == source or len(peer.listings) + len(peer.identities) > _URGENT_MAX:
                continue
            peer.listings |= {each.digest: each.raw for each in urgent if each.kind == "listing"}
            # Send all of an identity's statements: a revocation alone may be by a key that the peer does not know.
            peer.identities |= {each.issuer: None for each in urgent if each.kind in STATEMENTS}
            peer.woken.set()

    async def _converse(self, peer: _Peer) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._every_s * self._chance() / 4
        while True:
            try:
                async with asyncio.timeout_at(due_s):
                    await peer.woken.wait()
            except TimeoutError:
                pass
            try:
                if peer.woken.is_set():
                    await self._push(peer)
                if loop.time() >= due_s:
                    await self.exchange(peer.url)
            except (MarketError, SQLAlchemyError) as error:
                peer.failures += 1
                if peer.failures == 1:
                    _log.warning("no gossip with %s: %s", peer.url, _short(error))
            else:
                peer.failures = 0
                if loop.time() < due_s:
                    continue
            due_s = loop.time() + self._pause_s(peer.failures)

    async def _push(self, peer: _Peer) -> None:
        peer.woken.clear()
        listings, identities = list(peer.listings.values()), list(peer.identities)
        peer.listings, peer.identities = {}, {}
        statements = [raw for each in identities for raw in self._keeper.statements_of(each)]
        await self._tell(peer.url, written([*statements, *listings]))

    def _pause_s(self, failures: int) -> float:
        longest_s = min(self._every_s * 2.0 ** min(failures, 10), max(_PAUSE_S_MAX, self._every_s))
        return longest_s * (0.75 + self._chance() / 2)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(_UPKEEP_S)
            try:
                await asyncio.to_thread(self._keeper.sweep)
                await asyncio.to_thread(self._keeper.refresh)
            except SQLAlchemyError as error:
                _log.warning("stored records of the market cannot be read: %s", _short(error))


def _short(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, SQLAlchemyError) else str(error)
