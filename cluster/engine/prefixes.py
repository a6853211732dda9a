"""The slots by the prompt prefixes that they hold, and the slots kept for later prompts with the same prefix.

The coordinator alone decides. Every stage copies and frees as ordered, so all of them agree on what is cached.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Prefixes:
    """Block hashes by slot. A slot is run by a sequence, or retained, or not in this table."""

    # Insertion order is age: the oldest retained slot goes first.
    retained: dict[int, int] = field(default_factory=dict)
    _holders: dict[bytes, dict[int, None]] = field(default_factory=dict)
    _chains: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def retained_blocks(self) -> int:
        return sum(self.retained.values())

    def note(self, slot: int, hashes: list[bytes]) -> None:
        """Note that the slot holds these blocks, one behind the other."""
        chain = self._chains.setdefault(slot, [])
        for block_hash in hashes[len(chain) :]:
            chain.append(block_hash)
            self._holders.setdefault(block_hash, {})[slot] = None

    def match(self, hashes: list[bytes]) -> tuple[int, int]:
        """Return the slot with the longest common prefix and its number of blocks; (-1, 0) if there is none."""
        for blocks in range(len(hashes), 0, -1):
            if holders := self._holders.get(hashes[blocks - 1]):
                # A retained slot is free to be taken over as it is.
                return next((slot for slot in holders if slot in self.retained), next(iter(holders))), blocks
        return -1, 0

    def holds_no_more_than(self, slot: int, blocks: int) -> bool:
        """Tell whether nothing beyond these blocks is known of the slot."""
        return len(self._chains.get(slot, [])) <= blocks

    def retain(self, slot: int, blocks: int) -> bool:
        """Keep the slot of a finished sequence. Return False if it has no whole block worth keeping."""
        if not self._chains.get(slot):
            self.forget(slot)
            return False
        self.retained[slot] = blocks
        return True

    def take(self, slot: int, blocks: int) -> int:
        """Hand the retained slot to a sequence that shares its first `blocks` blocks.

        Return the blocks that it owns.
        """
        for block_hash in self._chains[slot][blocks:]:
            self._drop(block_hash, slot)
        del self._chains[slot][blocks:]
        return self.retained.pop(slot)

    def oldest(self, *spared: int) -> int | None:
        """Return the retained slot that would be given up first, except those in `spared`."""
        return next((slot for slot in self.retained if slot not in spared), None)

    @property
    def newest(self) -> int:
        """The slot that was retained last, or -1 if there is none."""
        return next(reversed(self.retained), -1)

    def forget(self, slot: int) -> int:
        """Note that the slot's content is gone. Return the number of blocks that were retained in it."""
        for block_hash in self._chains.pop(slot, []):
            self._drop(block_hash, slot)
        return self.retained.pop(slot, 0)

    def _drop(self, block_hash: bytes, slot: int) -> None:
        holders = self._holders[block_hash]
        del holders[slot]
        if not holders:
            del self._holders[block_hash]
