"""The blocks of one stage's KV cache that are on disk, so that prefixes survive the end of the process.

The coordinator says which slots to save and what to restore. Saving must not delay steps: the computing thread copies
a block when nothing else is to be done, and another thread encrypts and writes it. A block whose slot is given up or
overwritten before that is not saved.
"""

import hashlib
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version

import structlog

from cluster.compute.block_files import BlockFiles
from cluster.compute.kv_cache import KvCache
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec
from cluster.plans.plan import BLOCK_TOKENS
from cluster.wire import SAVED_NAME_BYTES, Restore, Save

log = structlog.get_logger(__name__)

HELD_MAX = 65_536
# Another version may compute a model differently.
PROGRAM = version("millrace")
# A restore holds up the steps behind it for about this long, or for one block.
_RESTORE_NS = 50_000_000
# A disk that has lost more than this against computing is slower. A single delay of a busy machine says nothing.
LOST_NS_MAX = 100_000_000
# It is tried again after this time, in seconds.
_SLOW_S = 60.0
# Times of smaller steps say little about prefilling.
_PREFILL_ROWS = 64
_MEASURED_EVERY = 4
# The weight of the past in averages.
_KEPT = 0.8
# Nanoseconds that computing the block took here.
_HEADER = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """Whether more blocks should be read, and why. `lost_ns` is the time that reading has cost beyond computing."""

    lost_ns: int
    reason: str

    @property
    def is_worth_it(self) -> bool:
        return self.lost_ns <= LOST_NS_MAX


def judge(lost_ns: int, read_ns: int, computed_ns: int) -> DiskVerdict:
    """Compare how long a block took to read and to compute, in ns; 0 means that the latter is unknown.

    `lost_ns` is what earlier blocks have lost. Blocks that were read faster make up for it, but not in advance.
    """
    lost_ns = max(0, lost_ns + read_ns - computed_ns) if computed_ns else lost_ns
    reason = f"reading took {read_ns / 1e6:.1f} ms, computing {computed_ns / 1e6:.1f} ms"
    return DiskVerdict(lost_ns, f"{reason}; {lost_ns / 1e6:.1f} ms lost")


class SavedBlocks:
    """The saved blocks of one stage. Only the thread that computes calls this."""

    def __init__(self, files: BlockFiles, card: ModelCard, digest: str, spec: StageSpec, cache: KvCache) -> None:
        self._files = files
        self._cache = cache
        self._size = _HEADER.size + cache.block_bytes
        layers = f"{spec.first_layer}-{spec.end_layer} {cache.block_layout}"
        # Some models rotate keys according to the length of the context.
        context = spec.context_tokens if card.path == "compat" or _is_long(card) else 0
        terms = f"{PROGRAM} {digest} {spec.precision} {spec.wire} {layers} {context}"
        self._space = hashlib.blake2b(terms.encode(), digest_size=16).hexdigest()
        self._held: dict[str, None] = {}
        # By slot and block: its name and when it was used, in ns since 1970.
        self._pending: dict[int, dict[int, tuple[str, int]]] = {}
        self._row_ns = 0.0
        self._prefills = 0
        self._lost_ns = 0
        self._slow_until_s = 0.0

    @property
    def has_pending(self) -> bool:
        """Tell whether blocks are still to be copied."""
        return bool(self._pending)

    def look(self) -> int:
        """Look what is on disk. Return the number of blocks."""
        self._held = dict.fromkeys(name for name in self._files.names(self._space) if _is_name(name))
        return len(self._held)

    def held(self, among: Collection[bytes] | None) -> list[bytes]:
        """Return the names of the blocks on disk, those used last first; only names in `among`, if given."""
        if among is not None:
            return [name for name in among if name.hex() in self._held]
        # The thread that writes may add names meanwhile.
        return [bytes.fromhex(name) for name in list(self._held)[:HELD_MAX]]

    def measures(self, rows: int) -> bool:
        """Tell whether a step of this size is to be measured. That has a price on GPUs, so only some steps are."""
        is_prefill = rows >= _PREFILL_ROWS
        self._prefills += is_prefill
        return is_prefill and self._prefills % _MEASURED_EVERY == 1

    def observe(self, rows: int, spent_ns: int) -> None:
        """Learn how long computing takes: a step's rows, and the time in ns."""
        fresh_ns = spent_ns / rows
        self._row_ns = _KEPT * self._row_ns + (1 - _KEPT) * fresh_ns if self._row_ns else fresh_ns

    def save(self, order: Save) -> None:
        """Note that these blocks are to be saved. Of those on disk, only note that they were used."""
        now_ns = time.time_ns()
        used: list[tuple[str, int]] = []
        for block, name in enumerate(raw.hex() for raw in order.names):
            # The end of a prefix is of no use without its beginning: it goes first.
            used_ns = now_ns - block * 1000
            if name in self._held:
                used.append((name, used_ns))
            elif not self._files.is_paused:
                self._pending.setdefault(order.slot, {})[block] = name, used_ns
        self._touch(used)

    def forget_slot(self, slot: int, first_block: int = 0) -> None:
        """Note that the slot's blocks from this one on will have other content."""
        blocks = self._pending.pop(slot, {})
        if kept := {block: saved for block, saved in blocks.items() if block < first_block}:
            self._pending[slot] = kept

    def forget_slots(self) -> None:
        """Note that all slots will have other content."""
        self._pending.clear()

    def save_next(self) -> bool:
        """Copy the next block for the thread that writes. Return False if there is none, or that thread is behind."""
        if not self._pending or self._files.is_busy:
            return False
        slot, blocks = next(iter(self._pending.items()))
        block, (name, used_ns) = next(iter(blocks.items()))
        del blocks[block]
        if not blocks:
            del self._pending[slot]
        header = _HEADER.pack(int(self._row_ns * BLOCK_TOKENS))
        try:
            content = self._cache.save_block(slot, block, header)
        except (MemoryError, RuntimeError) as error:  # A GPU's errors are RuntimeErrors.
            log.warning("KV block not saved", reason=str(error))
            return True

        # Without `self`: a job that waits for the disk must not keep the KV cache of layers that were dropped.
        files, space, held = self._files, self._space, self._held

        def write() -> None:
            if files.write(space, name, content, used_ns):
                held[name] = None

        return files.later(write)

    def restore(self, order: Restore) -> Restore:
        """Fill a slot's blocks from the disk, for a short while. Return the order with the names that are done."""
        self._cache.reserve(order.slot, (order.first_block + order.blocks) * BLOCK_TOKENS)
        self.forget_slot(order.slot, order.first_block)
        began_ns = time.perf_counter_ns()
        now_ns = time.time_ns()
        done: list[str] = []
        for block, name in enumerate((raw.hex() for raw in order.names), order.first_block):
            if not self._is_fast or time.perf_counter_ns() - began_ns > _RESTORE_NS:
                break
            if not self._restore_block(order.slot, block, name):
                self._held.pop(name, None)
                break
            done.append(name)
        self._touch([(name, now_ns - 1000 * at) for at, name in enumerate(done, order.first_block)])
        return Restore(order.slot, order.first_block, order.blocks, order.names[: len(done)])

    @property
    def _is_fast(self) -> bool:
        return time.monotonic() >= self._slow_until_s

    def _restore_block(self, slot: int, block: int, name: str) -> bool:
        began_ns = time.perf_counter_ns()
        content = self._files.read(self._space, name, self._size)
        if content is None:
            return False
        self._cache.load_block(slot, block, content, _HEADER.size)
        (computed_ns,) = _HEADER.unpack_from(content)
        verdict = judge(self._lost_ns, time.perf_counter_ns() - began_ns, computed_ns)
        self._lost_ns = verdict.lost_ns
        if not verdict.is_worth_it:
            self._lost_ns = 0
            self._slow_until_s = time.monotonic() + _SLOW_S
            log.info("KV blocks computed again", reason=verdict.reason, tried_again_in_s=_SLOW_S)
        return True

    def _touch(self, used: list[tuple[str, int]]) -> None:
        files, space, held = self._files, self._space, self._held

        def touch() -> None:
            for name, used_ns in used:
                if not files.touch(space, name, used_ns):
                    held.pop(name, None)

        if used:
            files.later(touch)


def _is_long(card: ModelCard) -> bool:
    return any(rope is not None and rope.kind == "longrope" for rope in (card.rope, card.local_rope))


def _is_name(text: str) -> bool:
    return len(text) == 2 * SAVED_NAME_BYTES and not set(text) - set("0123456789abcdef")
