"""The KV cache on a GPU: one tensor per layer for all slots, which own blocks of it.

A GPU computes a few rows faster than Python starts its kernels. So the rows of all slots are stored at once, and
the slots that decode attend together.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cluster.compute.kv_cache import KvCache
from cluster.errors import ClusterError
from cluster.models.model_card import KvShape
from cluster.plans.plan import BLOCK_TOKENS


class PagedKvCache(KvCache):
    """The cache of one stage's layers. A layer's keys and values are [places, kv_heads, dim].

    All memory that the plan grants is taken at once. A slot's blocks lie anywhere in it.
    """

    def __init__(
        self,
        shapes: Sequence[KvShape],
        blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        output_dim: int = 0,
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(shapes, blocks, dtype, device, output_dim=output_dim, output_dtype=output_dtype)
        # Block 0 belongs to no slot: its zeros stand for positions that a row does not see.
        places = (blocks + 1) * BLOCK_TOKENS

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(places, *shape, dtype=dtype, device=device)

        self._all_keys = [zeros(shape.kv_heads, shape.key_dim) for shape in shapes]
        self._all_values = [zeros(shape.kv_heads, shape.value_dim) for shape in shapes]
        self._all_outputs = torch.empty(places if output_dim else 0, output_dim, dtype=output_dtype, device=device)
        self._free = list(range(blocks, 0, -1))
        self._tables: dict[int, list[int]] = {}
        self._places: dict[int, Tensor] = {}
        self._within = torch.arange(BLOCK_TOKENS, device=device)

    def place(self, slot: int, position: int) -> int:
        """Return the place of a slot's position, which must be reserved."""
        return self._tables[slot][position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS

    def places(self, slot: int, tokens: int) -> Tensor:
        """Return the places [tokens] of a slot's first tokens, which must be reserved."""
        return self._places[slot][:tokens]

    def padded_places(self, slots: Sequence[int], tokens: int) -> Tensor:
        """Return the places [slots, tokens] of slots, `tokens` rounded up to whole blocks.

        Behind a slot's own blocks come places of zeros.
        """
        blocks = -(-tokens // BLOCK_TOKENS)
        tables = [self._tables[slot][:blocks] for slot in slots]
        return self._spread([[*table, *[0] * (blocks - len(table))] for table in tables])

    def store(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [rows, kv_heads, dim] at places [rows]."""
        self._all_keys[layer].index_copy_(0, places, keys.to(self._dtype))
        self._all_values[layer].index_copy_(0, places, values.to(self._dtype))

    def read(self, layer: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values at places [..., seen]: [..., kv_heads, seen, dim]."""
        flat = places.flatten()
        keys, values = self._all_keys[layer].index_select(0, flat), self._all_values[layer].index_select(0, flat)
        keys, values = keys.view(*places.shape, *keys.shape[1:]), values.view(*places.shape, *values.shape[1:])
        return keys.transpose(-3, -2), values.transpose(-3, -2)

    def write(self, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [tokens, kv_heads, dim] from position `start` on.

        Return copies of all keys and values up to there: [kv_heads, start + tokens, dim].
        """
        end = start + keys.shape[0]
        places = self.places(slot, end)
        self.store(layer, places[start:], keys, values)
        return self.read(layer, places)

    def write_outputs(self, slot: int, start: int, rows: Tensor) -> None:
        """Store the stage's output rows [tokens, output_dim] from position `start` on."""
        self._all_outputs.index_copy_(0, self.places(slot, start + rows.shape[0])[start:], rows)

    def read_outputs(self, slot: int, start: int, count: int) -> Tensor:
        """Return the stored output rows [count, output_dim] of these positions.

        Raise ClusterError if there are none.
        """
        if not self._output_dim or start + count > self._capacity.get(slot, 0):
            raise ClusterError(f"no output rows of slot {slot} are stored from position {start} on")
        return self._all_outputs.index_select(0, self.places(slot, start + count)[start:])

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Begin `target` with the first `tokens` tokens of `source`. Raise ClusterError if it holds fewer."""
        if tokens > self._blocks.get(source, 0) * BLOCK_TOKENS:
            raise ClusterError(f"slot {source} holds fewer than {tokens} tokens to copy")
        self.reserve(target, tokens)
        begin, end = self.places(source, tokens), self.places(target, tokens)
        outputs = [self._all_outputs] if self._output_dim else []
        for held in (*self._all_keys, *self._all_values, *outputs):
            held.index_copy_(0, end, held.index_select(0, begin))

    def _block(self, slot: int, block: int) -> list[Tensor]:
        begin = self.place(slot, block * BLOCK_TOKENS)
        outputs = [self._all_outputs] if self._output_dim else []
        parts = [held[begin : begin + BLOCK_TOKENS] for held in (*self._all_keys, *self._all_values, *outputs)]
        return [part for part in parts if part.numel()]

    def free(self, slot: int) -> None:
        """Drop everything that the slot holds."""
        super().free(slot)
        self._places.pop(slot, None)
        self._free.extend(reversed(self._tables.pop(slot, [])))

    def _grow(self, slot: int, tokens: int) -> None:
        table = self._tables.setdefault(slot, [])
        while len(table) * BLOCK_TOKENS < tokens:
            table.append(self._free.pop())
        self._places[slot] = self._spread([table])[0]
        self._capacity[slot] = tokens

    def _spread(self, tables: list[list[int]]) -> Tensor:
        """Return the places [tables, tokens] of tables of equally many blocks."""
        blocks = torch.tensor(tables, device=self._device)
        return (blocks.unsqueeze(-1) * BLOCK_TOKENS + self._within).flatten(1)
