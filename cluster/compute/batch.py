"""The layout of one step's rows: the slot of each row, the positions that it attends to, and its rotation."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from cluster.compute.paged_kv_cache import PagedKvCache

# Up to this many rows of one sequence, its grouped query heads become rows of their key-value head and read the
# keys once for all. Longer chunks compute enough to make another read free, and a mask as large as the group is
# not.
FOLDED_ROWS = 16


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are positions [start, start + count) of one slot, or in a paged cache one row each of `count` slots.

    `firsts` and `masks` have an entry for each kind of window. The first is the first position that any of the
    rows attends to. The mask is additive, over the positions from there on: [count, start + count - first], or
    None for a single row. Masks of up to FOLDED_ROWS rows are repeated for each query head that shares a key-value
    head. `places` [positions] are those in a paged cache. Rows of several slots have places
    [slots, positions] and masks [slots, 1, 1, positions].
    """

    slot: int
    start: int
    count: int
    firsts: tuple[int, ...]
    masks: tuple[Tensor | None, ...]
    places: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's row groups, one behind the other.

    `turns` has the rows' rotations [rows, 1, head_dim / 2] for each kind of rope. `learned` has their learned
    positions [rows, hidden], or None. `places` [rows] are those of their keys and values in a paged cache.
    """

    groups: tuple[RowGroup, ...]
    counts: list[int]
    turns: tuple[Tensor, ...]
    learned: Tensor | None
    places: Tensor | None = None


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
        paged: PagedKvCache | None,
    ) -> None:
        self._windows = tuple(windows)
        self._repeats = repeats
        self._ropes = tuple(ropes)
        self._positions = positions
        self._dtype = dtype
        self._device = device
        self._paged = paged

    def batch(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> Batch:
        """Return the layout of one step: group i is positions starts[i] to starts[i] + counts[i] of slots[i]."""
        groups = self._groups(list(zip(slots, starts, counts, strict=True)))
        where = self._where(starts, counts)
        return Batch(
            groups,
            [group.count for group in groups],
            tuple(rope[where] for rope in self._ropes),
            None if self._positions is None else self._positions[where],
            self._places(slots, starts, counts),
        )

    def _groups(self, spans: list[tuple[int, int, int]]) -> tuple[RowGroup, ...]:
        """Return groups of these (slot, start, count). In a paged cache, single rows side by side are one group."""
        if self._paged is None:
            return tuple(self._group(*span) for span in spans)
        groups: list[RowGroup] = []
        for is_single, neighbours in groupby(spans, key=lambda span: span[2] == 1):
            run = list(neighbours)
            if is_single and len(run) > 1:
                groups.append(self._singles(self._paged, run))
            else:
                groups += [self._group(*span) for span in run]
        return tuple(groups)

    def _group(self, slot: int, start: int, count: int) -> RowGroup:
        firsts = tuple(max(0, start + 1 - window) if window else 0 for window in self._windows)
        masks: tuple[Tensor | None, ...] = (None,) * len(firsts)
        if count > 1:
            masks = tuple(
                self._mask(start, count, first, window)
                for first, window in zip(firsts, self._windows, strict=True)
            )
        end = start + count
        places = None if self._paged is None else self._paged.places(slot, end)
        return RowGroup(slot, start, count, firsts, masks, places)

    def _singles(self, paged: PagedKvCache, run: list[tuple[int, int, int]]) -> RowGroup:
        rows = torch.tensor([start for _, start, _ in run], device=self._device)[:, None]
        places = paged.padded_places([slot for slot, _, _ in run], max(start for _, start, _ in run) + 1)
        positions = torch.arange(places.shape[1], device=self._device)
        # A mask does not hide NaNs of an earlier owner of the slot's last block.
        places = places.masked_fill_(positions > rows, 0)
        masks = tuple(self._hiding(rows, positions, window)[:, None, None] for window in self._windows)
        return RowGroup(-1, 0, len(run), (0,) * len(masks), masks, places)

    def _places(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> Tensor | None:
        paged = self._paged
        if paged is None:
            return None
        spans = zip(slots, starts, counts, strict=True)
        places = [paged.place(slot, start + at) for slot, start, count in spans for at in range(count)]
        return torch.tensor(places, device=self._device)

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
        mask = self._hiding(rows, positions, window)
        return mask.repeat(self._repeats, 1) if count <= FOLDED_ROWS else mask

    def _hiding(self, rows: Tensor, positions: Tensor, window: int) -> Tensor:
        """Return a mask [rows, positions] of rows at positions [rows, 1]; it hides those behind and too far ahead."""
        hidden = positions > rows
        if window:
            hidden |= positions <= rows - window
        mask = torch.zeros(hidden.shape, device=self._device, dtype=self._dtype)
        return mask.masked_fill_(hidden, float("-inf"))
