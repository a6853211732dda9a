"""The relay's queue, in memory: buyers' requests that wait for their sellers, and answers on the way back."""

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from market.network.relayed_request import POLL_S, AnswerPart, Method, RelayedRequest
from runtime.errors import Conflict, LaneTimeout, NotFound, Overloaded, QueueFull

LOOK_EVERY_S = 2.0
"""Interval at which a seller's poll checks whether the marketplace is shutting down."""


@dataclass(frozen=True, slots=True)
class RelayBounds:
    """Limits of the relay, in numbers, bytes and seconds."""

    sellers: int = 4096
    """Sellers."""
    requests: int = 512
    waiting_bytes: int = 2**27
    per_seller: int = 32
    per_payer: int = 8
    per_account: int = 64
    """Limit per account, as a buyer at all sellers or a seller under all its names: either may have many
    channels.
    """
    unbacked: int = 64
    """Requests without credits behind them; they do not take room from paid ones."""
    unbacked_per_seller: int = 4
    unbacked_per_network: int = 16
    reading_bytes_per_network: int = 2**25
    parts_held: int = 4
    poll_s: float = POLL_S
    present_s: float = 10.0
    """A seller that neither polls nor sent a part for this long is absent."""
    first_part_s: float = 20.0
    gap_s: float = 20.0
    """Sellers send something every 10 s, whatever their model does."""
    slow_reader_s: float = 20.0
    job_s: float = 1860.0
    """Limit for a whole answer: sellers end an answer after half an hour."""
    unbacked_s: float = 120.0


@dataclass(eq=False)
class Carried:
    """One request and its answer. `payer` is what its slot counts for: a channel, or an unknown network.

    `accounts` are the marketplace's accounts that the channel connects.
    """

    relayed: RelayedRequest
    seller: str
    payer: str
    bounds: RelayBounds
    is_backed: bool = True
    accounts: tuple[str, ...] = ()
    held_bytes: int = 0
    """Bytes of its body that are here, or on their way to the seller."""
    is_gone: bool = False
    """True if its buyer hung up, or reads too slowly."""
    _next: int = 0
    _parts: "asyncio.Queue[AnswerPart]" = field(init=False)

    def __post_init__(self) -> None:
        self._parts = asyncio.Queue(self.bounds.parts_held)

    @property
    def lasts_s(self) -> float:
        return self.bounds.job_s if self.is_backed else self.bounds.unbacked_s

    async def take(self, part: AnswerPart) -> None:
        """Take a part from the seller; a repeated part is taken once.

        Raises Conflict if it is not wanted any more.
        """
        if self.is_gone:
            raise Conflict("The buyer has disconnected.", code="gone")
        if part.number < self._next:
            return
        if part.number > self._next:
            raise Conflict(f"Part {self._next} is expected next.", param="number")
        self._next += 1
        try:
            async with asyncio.timeout(self.bounds.slow_reader_s):
                await self._parts.put(part)
        except TimeoutError:
            self.is_gone = True
            raise Conflict("The buyer reads too slowly.", code="gone") from None
        if self.is_gone:
            raise Conflict("The buyer has disconnected.", code="gone")

    def leave(self) -> None:
        """Mark the buyer as gone, which releases a part that waits for room."""
        self.is_gone = True
        while not self._parts.empty():
            self._parts.get_nowait()

    async def first(self) -> AnswerPart:
        """Raises LaneTimeout."""
        return await self._part(self.bounds.first_part_s)

    async def rest(self, first: AnswerPart) -> AsyncIterator[bytes]:
        """Yield the bytes of the whole answer. Raises LaneTimeout if the seller stops before its end."""
        part = first
        while True:
            if part.data:
                yield part.data
            if part.is_last:
                return
            part = await self._part(self.bounds.gap_s)

    async def _part(self, patience_s: float) -> AnswerPart:
        try:
            async with asyncio.timeout(patience_s):
                return await self._parts.get()
        except TimeoutError:
            raise LaneTimeout("The seller did not answer in time.", code="unreachable") from None


@dataclass(eq=False)
class _SellerQueue:
    seen_s: float
    pollers: int = 0
    waiting: deque[Carried] = field(default_factory=deque)
    carried: dict[str, Carried] = field(default_factory=dict)
    """All of its requests, fetched or not."""
    came: asyncio.Event = field(default_factory=asyncio.Event)


class RelayQueue:
    def __init__(self, bounds: RelayBounds | None = None, is_ending: Callable[[], bool] = lambda: False) -> None:
        """Create the queue; `is_ending` tells whether the process is shutting down, so that polls return early."""
        self.bounds = bounds or RelayBounds()
        self._is_ending = is_ending
        self._sellers: dict[str, _SellerQueue] = {}
        self._payers: Counter[str] = Counter()
        self._networks: Counter[str] = Counter()
        """Requests without credits behind them, by network."""
        self._accounts: Counter[str] = Counter()
        self._held_bytes = 0
        self._reading_bytes: Counter[str] = Counter()

    def check_room(
        self, seller: str, payer: str = "", *, is_backed: bool = True, accounts: tuple[str, ...] = ()
    ) -> None:
        """Check, before its body is read, whether one more request has room. Raises Overloaded, QueueFull."""
        queue = self._sellers.get(seller)
        if queue is None or not self._is_present(queue):
            raise Overloaded("This seller is not connected now. Try again later.", code="unreachable")
        is_full = len(queue.carried) >= self.bounds.per_seller or self._held_bytes >= self.bounds.waiting_bytes
        if is_full or (self._is_full_for(payer, accounts) if is_backed else self._is_full_unbacked(queue, payer)):
            raise _full()

    def _is_full_for(self, payer: str, accounts: tuple[str, ...]) -> bool:
        if self._payers.total() >= self.bounds.requests:
            return True
        if any(self._accounts[each] >= self.bounds.per_account for each in accounts):
            return True
        return bool(payer) and self._payers[payer] >= self.bounds.per_payer

    def _is_full_unbacked(self, queue: _SellerQueue, network: str) -> bool:
        return (
            self._networks.total() >= self.bounds.unbacked
            or self._networks[network] >= self.bounds.unbacked_per_network
            or sum(not each.is_backed for each in queue.carried.values()) >= self.bounds.unbacked_per_seller
        )

    @contextmanager
    def reading(self, network: str) -> Generator[Callable[[int], None]]:
        """Count a body that is being read. Call the result with each piece's size; it raises QueueFull."""
        held_bytes = 0

        def came(count: int) -> None:
            nonlocal held_bytes
            all_bytes, own_bytes = self._held_bytes + count, self._reading_bytes[network] + count
            if all_bytes > self.bounds.waiting_bytes or own_bytes > self.bounds.reading_bytes_per_network:
                raise _full()
            held_bytes += count
            self._held_bytes, self._reading_bytes[network] = all_bytes, own_bytes

        try:
            yield came
        finally:
            self._held_bytes -= held_bytes
            _subtract(self._reading_bytes, network, held_bytes)

    def put(
        self,
        seller: str,
        payer: str,
        method: Method,
        path: str,
        body: bytes,
        *,
        is_backed: bool = True,
        accounts: tuple[str, ...] = (),
    ) -> Carried:
        """Queue a request to be fetched; the caller must `drop` it in the end. Raises as `check_room`."""
        self.check_room(seller, payer, is_backed=is_backed, accounts=accounts)
        relayed = RelayedRequest(secrets.token_hex(16), method, path, body)
        carried = Carried(relayed, seller, payer, self.bounds, is_backed, accounts, len(body))
        queue = self._sellers[seller]
        queue.waiting.append(carried)
        queue.carried[carried.relayed.id] = carried
        queue.came.set()
        (self._payers if is_backed else self._networks)[payer] += 1
        self._accounts.update(accounts)
        self._held_bytes += len(body)
        return carried

    def drop(self, carried: Carried) -> None:
        """Remove a request whose answer is complete or no longer wanted; once for each."""
        carried.leave()
        queue = self._sellers[carried.seller]
        del queue.carried[carried.relayed.id]
        if carried in queue.waiting:
            queue.waiting.remove(carried)
        self._release(carried)
        _subtract(self._payers if carried.is_backed else self._networks, carried.payer, 1)
        for account in carried.accounts:
            _subtract(self._accounts, account, 1)

    def _release(self, carried: Carried) -> None:
        self._held_bytes -= carried.held_bytes
        carried.held_bytes = 0

    def greet(self, seller: str) -> None:
        """Mark the seller as present, because it will poll soon: buyers that come first wait. Raises QueueFull."""
        self._queue_of(seller)

    async def poll(self, seller: str) -> RelayedRequest | None:
        """Return the next request for a seller, None if none comes in time. Raises QueueFull."""
        queue = self._queue_of(seller)
        queue.pollers += 1
        until_s = time.monotonic() + self.bounds.poll_s
        try:
            while not queue.waiting and not self._is_ending() and (left_s := until_s - time.monotonic()) > 0:
                queue.came.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_EVERY_S)):
                        await queue.came.wait()
        finally:
            queue.pollers -= 1
        queue.seen_s = time.monotonic()
        if not queue.waiting or self._is_ending():
            return None
        carried = queue.waiting.popleft()
        relayed = carried.relayed
        # The body counts until the seller begins to answer, since it may still be on its way.
        carried.relayed = replace(relayed, body=b"")
        return relayed

    async def answer(self, seller: str, job_id: str, part: AnswerPart) -> None:
        """Pass on a part. Raises NotFound, and Conflict as `Carried.take`."""
        queue = self._sellers.get(seller)
        carried = queue.carried.get(job_id) if queue else None
        if queue is None or carried is None:
            raise NotFound("This request is no longer waiting for an answer.")
        queue.seen_s = time.monotonic()
        self._release(carried)
        await carried.take(part)

    def _queue_of(self, seller: str) -> _SellerQueue:
        now_s = time.monotonic()
        queue = self._sellers.get(seller)
        if queue is None:
            if len(self._sellers) >= self.bounds.sellers:
                self._forget_absent()
            queue = self._sellers[seller] = _SellerQueue(now_s)
        queue.seen_s = now_s
        return queue

    def _is_present(self, queue: _SellerQueue) -> bool:
        return queue.pollers > 0 or time.monotonic() - queue.seen_s <= self.bounds.present_s

    def _forget_absent(self) -> None:
        kept = {
            seller: queue for seller, queue in self._sellers.items() if queue.carried or self._is_present(queue)
        }
        if len(kept) >= self.bounds.sellers:
            raise QueueFull("This marketplace relays for its maximum number of sellers. Try again later.", 60)
        self._sellers = kept


def _full() -> QueueFull:
    full = QueueFull("Too many requests are on their way to this seller. Try again shortly.", 1)
    full.code = "full"
    return full


def _subtract(counts: "Counter[str]", name: str, count: int) -> None:
    counts[name] -= count
    if counts[name] <= 0:
        del counts[name]
