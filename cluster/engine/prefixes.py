"""Which slot holds which beginnings of prompts, and slots kept after their sequences for whoever begins alike.

The head alone decides: every stage copies and frees what it is told, so all of them agree on what is cached.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Prefixes:
    """Block hashes by slot. A slot is run by a sequence, or retained, or unknown here."""

    # Insertion order is age: the oldest retained slot goes first.
    retained: dict[int, int] = field(default_factory=dict)
    _holders: dict[bytes, dict[int, None]] = field(default_factory=dict)
    _chains: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def retained_blocks(self) -> int:
        return sum(self.retained.values())

    def note(self, slot: int, hashes: list[bytes]) -> None:
        """The slot holds these blocks, one behind the other."""
        chain = self._chains.setdefault(slot, [])
        for block_hash in hashes[len(chain) :]:
            chain.append(block_hash)
            self._holders.setdefault(block_hash, {})[slot] = None

    def match(self, hashes: list[bytes]) -> tuple[int, int]:
        """The slot with the longest common beginning, and of how many blocks; (-1, 0) without one."""
        for blocks in range(len(hashes), 0, -1):
            if holders := self._holders.get(hashes[blocks - 1]):
                # One that nobody runs can be taken over as it is.
                return next((slot for slot in holders if slot in self.retained), next(iter(holders))), blocks
        return -1, 0

    def holds_no_more_than(self, slot: int, blocks: int) -> bool:
        """Whether these blocks are all that is known of the slot."""
        return len(self._chains.get(slot, [])) <= blocks

    def retain(self, slot: int, blocks: int) -> bool:
        """Keep the slot of a finished sequence; False when there is no whole block worth keeping."""
        if not self._chains.get(slot):
            self.forget(slot)
            return False
        self.retained[slot] = blocks
        return True

    def take(self, slot: int, blocks: int) -> int:
        """Somebody runs the retained slot from its first `blocks` blocks on; returns the blocks that it owns."""
        for block_hash in self._chains[slot][blocks:]:
            self._drop(block_hash, slot)
        del self._chains[slot][blocks:]
        return self.retained.pop(slot)

    def oldest(self, *spared: int) -> int | None:
        """The retained slot that would be given up first, those `spared` apart."""
        return next((slot for slot in self.retained if slot not in spared), None)

    @property
    def newest(self) -> int:
        """The slot that was retained last; -1 without one."""
        return next(reversed(self.retained), -1)

    def forget(self, slot: int) -> int:
        """The slot's content is gone; returns the blocks that were retained in it."""
        for block_hash in self._chains.pop(slot, []):
            self._drop(block_hash, slot)
        return self.retained.pop(slot, 0)

    def _drop(self, block_hash: bytes, slot: int) -> None:
        holders = self._holders[block_hash]
        del holders[slot]
        if not holders:
            del self._holders[block_hash]
