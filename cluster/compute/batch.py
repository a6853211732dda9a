"""The layout of one step's rows: the slot of each row, the positions that it attends to, and its rotation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Up to this many rows of one sequence, its grouped query heads become rows of their key-value head and read the
# keys once for all. Longer chunks compute enough to make another read free, and a mask as large as the group is
# not.
FOLDED_ROWS = 16


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are positions [start, start + count) of one slot.

    `firsts` and `masks` have an entry for each kind of window. The first is the first position that any of the
    rows attends to. The mask is additive, over the positions from there on: [count, start + count - first], or
    None for a single row. Masks of up to FOLDED_ROWS rows are repeated for each query head that shares a key-value
    head.
    """

    slot: int
    start: int
    count: int
    firsts: tuple[int, ...]
    masks: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's row groups, one behind the other.

    `turns` has the rows' rotations [rows, 1, head_dim / 2] for each kind of rope. `learned` has their learned
    positions [rows, hidden], or None.
    """

    groups: tuple[RowGroup, ...]
    counts: list[int]
    turns: tuple[Tensor, ...]
    learned: Tensor | None


class Layout:
    """Lays out steps.

    `windows` are the kinds of windows that layers have, 0 for none. `repeats` is the number of query heads that
    share a key-value head. `ropes` [positions, 1, head_dim / 2] and `positions` [positions, hidden] are tables in
    which rows look up their position.
    """

    def __init__(
        self,
        windows: Sequence[int],
        repeats: int,
        ropes: Sequence[Tensor],
        positions: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._windows = tuple(windows)
        self._repeats = repeats
        self._ropes = tuple(ropes)
        self._positions = positions
        self._dtype = dtype
        self._device = device

    def batch(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> Batch:
        """Return the layout of one step: group i is positions starts[i] to starts[i] + counts[i] of slots[i]."""
        groups = []
        for slot, start, count in zip(slots, starts, counts, strict=True):
            firsts = tuple(max(0, start + 1 - window) if window else 0 for window in self._windows)
            masks: tuple[Tensor | None, ...] = (None,) * len(firsts)
            if count > 1:
                masks = tuple(
                    self._mask(start, count, first, window)
                    for first, window in zip(firsts, self._windows, strict=True)
                )
            groups.append(RowGroup(slot, start, count, firsts, masks))
        where = self._where(starts, counts)
        learned = None if self._positions is None else self._positions[where]
        return Batch(tuple(groups), list(counts), tuple(rope[where] for rope in self._ropes), learned)

    def _where(self, starts: Sequence[int], counts: Sequence[int]) -> slice | Tensor:
        """Return the rows' positions, as a slice or as indices [rows]."""
        if len(starts) == 1:
            return slice(starts[0], starts[0] + counts[0])
        spans = zip(starts, counts, strict=True)
        positions = [position for start, count in spans for position in range(start, start + count)]
        return torch.tensor(positions, device=self._device)

    def _mask(self, start: int, count: int, first: int, window: int) -> Tensor:
        """Return a mask [count, start + count - first], repeated if query heads share a key-value head."""
        rows = torch.arange(start, start + count, device=self._device)[:, None]
        positions = torch.arange(first, start + count, device=self._device)
        hidden = positions > rows
        if window:
            hidden |= positions <= rows - window
        mask = torch.zeros(hidden.shape, device=self._device, dtype=self._dtype)
        mask.masked_fill_(hidden, float("-inf"))
        return mask.repeat(self._repeats, 1) if count <= FOLDED_ROWS else mask
