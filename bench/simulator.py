"""Simulate model servers: slots, prompts computed one after another, batched decoding, a prefix cache.

All answers of a server are decoded together, so each step takes the same time for all. A server's own clock counts
steps, and an answer ends when that clock has advanced by its length.
"""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """A server's properties. A decode step with n answers takes `step_s + n x step_each_s`."""

    name: str
    prefill_tokens_per_s: float
    step_s: float
    step_each_s: float
    slots: int
    cache_tokens: int
    delay_s: float = 0.002
    load_s: float = 0.0
    slower_from_s: float | None = None
    slower_times: float = 1.0
    usd_per_mtok: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One request of a trace.

    `blocks` identify the prompt's pieces of 16 tokens: equal blocks begin equal prompts.
    """

    at_s: float
    blocks: tuple[int, ...]
    answer_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return BLOCK_TOKENS * len(self.blocks)


@dataclass(slots=True)
class Ride:
    """A query on its way through one server."""

    query: Query
    server: "Server"
    on_first: Callable[[], None]
    on_end: Callable[[], None]
    began_s: float
    first_s: float = 0.0
    ended_s: float = 0.0
    cached_tokens: int = 0


class Clock:
    """Simulated time and its pending actions."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._numbers), act))

    def run(self) -> None:
        while self._due:
            self.now_s, _, act = heapq.heappop(self._due)
            act()


class PrefixCache:
    """The blocks that a server keeps.

    The least recently used one goes first, but never before those that follow it.
    """

    def __init__(self, tokens_max: int) -> None:
        self._blocks_max = tokens_max // BLOCK_TOKENS
        self._kept: OrderedDict[tuple[int, int], None] = OrderedDict()

    def matched(self, blocks: Sequence[int]) -> int:
        """Return how many of the first blocks are kept."""
        count = 0
        for key in _chained(blocks):
            if key not in self._kept:
                break
            count += 1
        return count

    def keep(self, blocks: Sequence[int]) -> None:
        for key in reversed(_chained(blocks)):
            self._kept[key] = None
            self._kept.move_to_end(key)
        while len(self._kept) > self._blocks_max:
            self._kept.popitem(last=False)


def _chained(blocks: Sequence[int]) -> list[tuple[int, int]]:
    at, keys = 0, []
    for place, block in enumerate(blocks):
        at = hash((at, block))
        keys.append((place, at))
    return keys


@dataclass
class Server:
    """One machine at work."""

    machine: Machine
    clock: Clock
    waiting: deque[Ride] = field(default_factory=deque)
    busy_slots: int = 0
    is_loaded: bool = False
    _prefills: deque[Ride] = field(default_factory=deque)
    _steps: float = 0.0
    _steps_at_s: float = 0.0
    _decoding: list[tuple[float, int, Ride]] = field(default_factory=list)
    _version: int = 0
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._cache = PrefixCache(self.machine.cache_tokens)
        self.is_loaded = not self.machine.load_s
        self._is_loading = False

    def take(self, ride: Ride) -> None:
        self.waiting.append(ride)
        if not self.is_loaded:
            if not self._is_loading:
                self._is_loading = True
                self.clock.at(self.clock.now_s + self.machine.load_s, self._loaded)
            return
        self._fill_slots()

    def _loaded(self) -> None:
        self.is_loaded = True
        self._fill_slots()

    def _fill_slots(self) -> None:
        while self.waiting and self.busy_slots < self.machine.slots:
            self.busy_slots += 1
            self._prefills.append(self.waiting.popleft())
            if len(self._prefills) == 1:
                self._prefill_next()

    def _prefill_next(self) -> None:
        ride = self._prefills[0]
        matched = min(self._cache.matched(ride.query.blocks), len(ride.query.blocks) - 1)
        ride.cached_tokens = matched * BLOCK_TOKENS
        uncached = ride.query.prompt_tokens - ride.cached_tokens
        seconds = self._slowness() * uncached / self.machine.prefill_tokens_per_s
        self.clock.at(self.clock.now_s + seconds, self._prefilled)

    def _prefilled(self) -> None:
        ride = self._prefills.popleft()
        self._cache.keep(ride.query.blocks)
        ride.first_s = self.clock.now_s + self.machine.delay_s
        ride.on_first()
        self._pass_time()
        heapq.heappush(self._decoding, (self._steps + ride.query.answer_tokens - 1, next(self._numbers), ride))
        self._plan_end()
        if self._prefills:
            self._prefill_next()

    def _pass_time(self) -> None:
        if self._decoding:
            self._steps += (self.clock.now_s - self._steps_at_s) / self._step_s()
        self._steps_at_s = self.clock.now_s

    def _step_s(self) -> float:
        return self._slowness() * (self.machine.step_s + len(self._decoding) * self.machine.step_each_s)

    def _slowness(self) -> float:
        machine = self.machine
        is_slow = machine.slower_from_s is not None and self.clock.now_s >= machine.slower_from_s
        return machine.slower_times if is_slow else 1.0

    def _plan_end(self) -> None:
        """Plan the next end again after every change of the batch. Earlier plans are void."""
        self._version += 1
        if self._decoding:
            version = self._version
            left_s = max(0.0, self._decoding[0][0] - self._steps) * self._step_s()
            self.clock.at(self.clock.now_s + left_s, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._pass_time()
        _, _, ride = heapq.heappop(self._decoding)
        ride.ended_s = self.clock.now_s + self.machine.delay_s
        self.busy_slots -= 1
        ride.on_end()
        self._plan_end()
        self._fill_slots()
