"""Keys and values of running sequences: one contiguous slot per sequence and layer, grown block by block.

Contiguous slots beat gathering pages three to four times on CPUs; the head counts the same blocks and never
asks for more than the plan granted.
"""

import torch
from torch import Tensor

from cluster.errors import ClusterError
from cluster.plan import BLOCK_TOKENS


class KvCache:
    """The cache of one stage's layers. A slot's tensors are [kv_heads, capacity, head_dim] per layer."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.blocks_total = blocks
        self._layers = layers
        self._shape = (kv_heads, head_dim)
        self._dtype = dtype
        self._device = device
        self._keys: dict[int, list[Tensor]] = {}
        self._values: dict[int, list[Tensor]] = {}
        self._blocks: dict[int, int] = {}

    @property
    def blocks_used(self) -> int:
        return sum(self._blocks.values())

    def reserve(self, slot: int, tokens: int) -> None:
        """Make room for `tokens` tokens in the slot; what it holds stays."""
        held = self._blocks.get(slot, 0)
        wanted = -(-tokens // BLOCK_TOKENS)
        if wanted <= held:
            return
        if self.blocks_used + wanted - held > self.blocks_total:
            raise ClusterError(f"KV cache of {self.blocks_total} blocks is full; the head counted wrongly")
        if not held:
            self._keys[slot] = [self._empty(0)] * self._layers
            self._values[slot] = [self._empty(0)] * self._layers
        self._blocks[slot] = wanted
        for layer in range(self._layers):
            self._keys[slot][layer] = self._grown(self._keys[slot][layer], wanted)
            self._values[slot][layer] = self._grown(self._values[slot][layer], wanted)

    def write(self, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store rows [tokens, kv_heads, head_dim] from position `start` on.

        Returns views of all keys and values up to there: [kv_heads, start + tokens, head_dim].
        """
        end = start + keys.shape[0]
        held_keys, held_values = self._keys[slot][layer], self._values[slot][layer]
        held_keys[:, start:end] = keys.transpose(0, 1)
        held_values[:, start:end] = values.transpose(0, 1)
        return held_keys[:, :end], held_values[:, :end]

    def free(self, slot: int) -> None:
        self._blocks.pop(slot, None)
        self._keys.pop(slot, None)
        self._values.pop(slot, None)

    def _empty(self, blocks: int) -> Tensor:
        kv_heads, head_dim = self._shape
        return torch.empty(kv_heads, blocks * BLOCK_TOKENS, head_dim, dtype=self._dtype, device=self._device)

    def _grown(self, held: Tensor, blocks: int) -> Tensor:
        fresh = self._empty(blocks)
        fresh[:, : held.shape[1]] = held
        return fresh
