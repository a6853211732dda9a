"""Where buyers' requests wait for sellers that come to fetch them, and answers on their way back: in memory."""

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.errors import Conflict, LaneTimeout, NotFound, Overloaded, QueueFull
from gateway.market.errand import POLL_S, Errand, Method, Part

LOOK_EVERY_S = 2.0
"""How often a seller's wait for work looks whether the house still has time for it."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the relay does at most, in numbers, bytes and seconds."""

    seats: int = 4096
    """Sellers."""
    errands: int = 512
    waiting_bytes: int = 2**27
    per_seller: int = 32
    per_payer: int = 8
    per_account: int = 64
    """Of one buyer at all sellers, and of one seller at all its names: either may have many channels."""
    unbacked: int = 64
    """Requests that no credits stand behind: they take nothing away from those that are paid for."""
    unbacked_per_seller: int = 4
    unbacked_per_network: int = 16
    reading_bytes_per_network: int = 2**25
    parts_held: int = 4
    poll_s: float = POLL_S
    present_s: float = 10.0
    """A seller that neither waits for work nor has sent a part for so long is not there."""
    first_part_s: float = 20.0
    gap_s: float = 20.0
    """Sellers send something every 10 s, whatever their model does."""
    slow_reader_s: float = 20.0
    job_s: float = 1860.0
    """A whole answer: sellers end theirs after half an hour."""
    unbacked_s: float = 120.0


@dataclass(eq=False)
class Carried:
    """One request and its answer. `payer` is whom its place counts for: a channel, or a network of strangers.

    `accounts` are those of the house that the channel is between.
    """

    errand: Errand
    seller: str
    payer: str
    bounds: Bounds
    is_backed: bool = True
    accounts: tuple[str, ...] = ()
    held_bytes: int = 0
    """What of its body is here, or on its way to the seller."""
    is_gone: bool = False
    """Its buyer hung up, or reads too slowly."""
    _next: int = 0
    _parts: "asyncio.Queue[Part]" = field(init=False)

    def __post_init__(self) -> None:
        self._parts = asyncio.Queue(self.bounds.parts_held)

    @property
    def lasts_s(self) -> float:
        return self.bounds.job_s if self.is_backed else self.bounds.unbacked_s

    async def take(self, part: Part) -> None:
        """From the seller; a part that was sent twice is taken once. Raises Conflict where nobody wants it."""
        if self.is_gone:
            raise Conflict("The buyer is gone.", code="gone")
        if part.number < self._next:
            return
        if part.number > self._next:
            raise Conflict(f"Part {self._next} is next.", param="number")
        self._next += 1
        try:
            async with asyncio.timeout(self.bounds.slow_reader_s):
                await self._parts.put(part)
        except TimeoutError:
            self.is_gone = True
            raise Conflict("The buyer reads too slowly.", code="gone") from None
        if self.is_gone:
            raise Conflict("The buyer is gone.", code="gone")

    def leave(self) -> None:
        """Nobody reads any more; a part that waits for its place need not."""
        self.is_gone = True
        while not self._parts.empty():
            self._parts.get_nowait()

    async def first(self) -> Part:
        """Raises LaneTimeout."""
        return await self._part(self.bounds.first_part_s)

    async def rest(self, first: Part) -> AsyncIterator[bytes]:
        """The bytes of the whole answer. Raises LaneTimeout where the seller stops before its end."""
        part = first
        while True:
            if part.data:
                yield part.data
            if part.is_last:
                return
            part = await self._part(self.bounds.gap_s)

    async def _part(self, patience_s: float) -> Part:
        try:
            async with asyncio.timeout(patience_s):
                return await self._parts.get()
        except TimeoutError:
            raise LaneTimeout("The seller did not answer in time.", code="unreachable") from None


@dataclass(eq=False)
class _Seat:
    seen_s: float
    pollers: int = 0
    waiting: deque[Carried] = field(default_factory=deque)
    carried: dict[str, Carried] = field(default_factory=dict)
    """All of them, fetched or not."""
    came: asyncio.Event = field(default_factory=asyncio.Event)


class Desk:
    def __init__(self, bounds: Bounds | None = None, is_ending: Callable[[], bool] = lambda: False) -> None:
        """`is_ending`: whether the process is about to go, and waits for nobody who waits for work."""
        self.bounds = bounds or Bounds()
        self._is_ending = is_ending
        self._seats: dict[str, _Seat] = {}
        self._payers: Counter[str] = Counter()
        self._networks: Counter[str] = Counter()
        """Of requests that nobody stands behind."""
        self._accounts: Counter[str] = Counter()
        self._held_bytes = 0
        self._reading_bytes: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        return self._payers.total() + self._networks.total()

    def check_room(
        self, seller: str, payer: str = "", *, is_backed: bool = True, accounts: tuple[str, ...] = ()
    ) -> None:
        """Whether one more request would be taken, before its body is read. Raises Overloaded, QueueFull."""
        seat = self._seats.get(seller)
        if seat is None or not self._is_present(seat):
            raise Overloaded("This seller does not ask for work just now.", code="unreachable")
        is_full = len(seat.carried) >= self.bounds.per_seller or self._held_bytes >= self.bounds.waiting_bytes
        if is_full or (self._is_full_for(payer, accounts) if is_backed else self._is_full_unbacked(seat, payer)):
            raise _full()

    def _is_full_for(self, payer: str, accounts: tuple[str, ...]) -> bool:
        if self._payers.total() >= self.bounds.errands:
            return True
        if any(self._accounts[each] >= self.bounds.per_account for each in accounts):
            return True
        return bool(payer) and self._payers[payer] >= self.bounds.per_payer

    def _is_full_unbacked(self, seat: _Seat, network: str) -> bool:
        return (
            self._networks.total() >= self.bounds.unbacked
            or self._networks[network] >= self.bounds.unbacked_per_network
            or sum(not each.is_backed for each in seat.carried.values()) >= self.bounds.unbacked_per_seller
        )

    @contextmanager
    def reading(self, network: str) -> Generator[Callable[[int], None]]:
        """A body that is being read: to be told of each piece that came. That raises QueueFull."""
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
        """To be fetched; whoever puts it gives it to `drop` in the end. Raises as `check_room`."""
        self.check_room(seller, payer, is_backed=is_backed, accounts=accounts)
        errand = Errand(secrets.token_hex(16), method, path, body)
        carried = Carried(errand, seller, payer, self.bounds, is_backed, accounts, len(body))
        seat = self._seats[seller]
        seat.waiting.append(carried)
        seat.carried[carried.errand.id] = carried
        seat.came.set()
        (self._payers if is_backed else self._networks)[payer] += 1
        self._accounts.update(accounts)
        self._held_bytes += len(body)
        return carried

    def drop(self, carried: Carried) -> None:
        """Its answer is over, or nobody waits for it any more; once for each."""
        carried.leave()
        seat = self._seats[carried.seller]
        del seat.carried[carried.errand.id]
        if carried in seat.waiting:
            seat.waiting.remove(carried)
        self._release(carried)
        _subtract(self._payers if carried.is_backed else self._networks, carried.payer, 1)
        for account in carried.accounts:
            _subtract(self._accounts, account, 1)

    def _release(self, carried: Carried) -> None:
        self._held_bytes -= carried.held_bytes
        carried.held_bytes = 0

    def greet(self, seller: str) -> None:
        """It will ask in a moment: buyers that come before wait for it. Raises QueueFull."""
        self._seat(seller)

    async def poll(self, seller: str) -> Errand | None:
        """The next request for a seller, None where none comes in time. Raises QueueFull."""
        seat = self._seat(seller)
        seat.pollers += 1
        until_s = time.monotonic() + self.bounds.poll_s
        try:
            while not seat.waiting and not self._is_ending() and (left_s := until_s - time.monotonic()) > 0:
                seat.came.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_EVERY_S)):
                        await seat.came.wait()
        finally:
            seat.pollers -= 1
        seat.seen_s = time.monotonic()
        if not seat.waiting or self._is_ending():
            return None
        carried = seat.waiting.popleft()
        errand = carried.errand
        # It counts until the seller begins to answer: so long it may be on its way there.
        carried.errand = replace(errand, body=b"")
        return errand

    async def answer(self, seller: str, errand_id: str, part: Part) -> None:
        """Raises NotFound, and Conflict as `Carried.take`."""
        seat = self._seats.get(seller)
        carried = seat.carried.get(errand_id) if seat else None
        if seat is None or carried is None:
            raise NotFound("Nobody waits for the answer to this request any more.")
        seat.seen_s = time.monotonic()
        self._release(carried)
        await carried.take(part)

    def _seat(self, seller: str) -> _Seat:
        now_s = time.monotonic()
        seat = self._seats.get(seller)
        if seat is None:
            if len(self._seats) >= self.bounds.seats:
                self._forget_absent()
            seat = self._seats[seller] = _Seat(now_s)
        seat.seen_s = now_s
        return seat

    def _is_present(self, seat: _Seat) -> bool:
        return seat.pollers > 0 or time.monotonic() - seat.seen_s <= self.bounds.present_s

    def _forget_absent(self) -> None:
        kept = {seller: seat for seller, seat in self._seats.items() if seat.carried or self._is_present(seat)}
        if len(kept) >= self.bounds.seats:
            raise QueueFull("As many sellers as this house relays for are here already.", 60)
        self._seats = kept


def _full() -> QueueFull:
    full = QueueFull("As many requests as may be are on their way to this seller.", 1)
    full.code = "full"
    return full


def _subtract(counts: "Counter[str]", name: str, count: int) -> None:
    counts[name] -= count
    if counts[name] <= 0:
        del counts[name]
