"""A compact Llama decoder over packed rows: the layers that one stage holds, and the cache they fill."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.kv_cache import KvCache
from cluster.model_card import ModelCard, Rope


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, with projections that read the same input fused into one matrix."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class StageWeights:
    """What one stage holds: `embedding` on the first, `final_norm` and `head` on the last."""

    layers: list[LayerWeights]
    embedding: Tensor | None
    final_norm: Tensor | None
    head: Tensor | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed row groups of one step: group i is rows [offsets[i], offsets[i] + counts[i]) of slot slots[i]."""

    slots: list[int]
    starts: list[int]
    counts: list[int]
    offsets: list[int]
    cosines: Tensor
    sines: Tensor
    masks: list[Tensor | None]


class Decoder:
    """Runs a stage's layers on packed rows [rows, hidden] of any mix of prefill chunks and decode steps."""

    def __init__(self, card: ModelCard, weights: StageWeights, cache: KvCache) -> None:
        self._card = card
        self._weights = weights
        self._cache = cache
        self._group = card.heads // card.kv_heads
        sample = weights.layers[0].qkv
        angles = _rope_angles(card.rope, card.head_dim, card.context_tokens)
        self._cosines = torch.cat((angles.cos(), angles.cos()), -1).to(sample.device, sample.dtype)
        self._sines = torch.cat((-angles.sin(), angles.sin()), -1).to(sample.device, sample.dtype)

    def batch(self, slots: list[int], starts: list[int], counts: list[int]) -> Batch:
        """Lay out one step, reserving cache room for its rows."""
        offsets, positions, masks = [], [], []
        rows = 0
        for slot, start, count in zip(slots, starts, counts, strict=True):
            self._cache.reserve(slot, start + count)
            offsets.append(rows)
            rows += count
            positions.append(torch.arange(start, start + count, device=self._cosines.device))
            masks.append(self._mask(start, count) if count > 1 else None)
        at = torch.cat(positions)
        cosines, sines = self._cosines[at].unsqueeze(1), self._sines[at].unsqueeze(1)
        return Batch(slots, starts, counts, offsets, cosines, sines, masks)

    def embed(self, token_ids: Tensor) -> Tensor:
        assert self._weights.embedding is not None
        return F.embedding(token_ids, self._weights.embedding)

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """Rows [rows, hidden] after this stage's layers; the cache then holds theirs."""
        for index, layer in enumerate(self._weights.layers):
            rows = self._layer(index, layer, rows, batch)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """Next-token logits [rows, vocabulary] of rows that have passed the last layer."""
        assert self._weights.final_norm is not None
        assert self._weights.head is not None
        return F.linear(_norm(rows, self._weights.final_norm, self._card.norm_epsilon), self._weights.head)

    def _layer(self, index: int, layer: LayerWeights, rows: Tensor, batch: Batch) -> Tensor:
        card = self._card
        normed = _norm(rows, layer.input_norm, card.norm_epsilon)
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(rows), -1, card.head_dim)
        rotated = _rotate(qkv[:, : card.heads + card.kv_heads], batch.cosines, batch.sines)
        attended = self._attend(index, rotated, qkv[:, card.heads + card.kv_heads :], batch)
        rows = rows + F.linear(attended, layer.output, layer.output_bias)
        normed = _norm(rows, layer.post_norm, card.norm_epsilon)
        gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return rows + F.linear(F.silu(gate) * up, layer.down, layer.down_bias)

    def _attend(self, index: int, rotated: Tensor, values: Tensor, batch: Batch) -> Tensor:
        """Attention of every row group over its own slot: [rows, heads * head_dim]."""
        card = self._card
        queries, keys = rotated[:, : card.heads], rotated[:, card.heads :]
        out = torch.empty_like(queries)
        for slot, start, count, offset, mask in zip(
            batch.slots, batch.starts, batch.counts, batch.offsets, batch.masks, strict=True
        ):
            rows = slice(offset, offset + count)
            all_keys, all_values = self._cache.write(index, slot, start, keys[rows], values[rows])
            out[rows] = self._attend_group(queries[rows], all_keys, all_values, mask)
        return out.view(len(out), -1)

    def _attend_group(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        # The query heads that share a key-value head become extra query rows of it: on CPUs this is 2 times
        # (fp32) to 20 times (bf16) faster than letting the kernel repeat keys and values.
        count, heads, head_dim = queries.shape
        folded = queries.view(count, heads // self._group, self._group, head_dim).permute(1, 2, 0, 3)
        folded = folded.reshape(1, heads // self._group, self._group * count, head_dim)
        attended = F.scaled_dot_product_attention(folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask)
        attended = attended.view(heads // self._group, self._group, count, head_dim)
        return attended.permute(2, 0, 1, 3).reshape(count, heads, head_dim)

    def _mask(self, start: int, count: int) -> Tensor:
        """Additive causal mask [group * count, start + count] of a chunk whose queries are folded by group."""
        device, dtype = self._cosines.device, self._cosines.dtype
        later = (
            torch.arange(start + count, device=device) > torch.arange(start, start + count, device=device)[:, None]
        )
        mask = torch.zeros(count, start + count, device=device, dtype=dtype).masked_fill_(later, float("-inf"))
        return mask.repeat(self._group, 1)


def _norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm with its mean in fp32, whatever the rows' dtype."""
    if rows.dtype == torch.float32:
        return F.rms_norm(rows, (rows.shape[-1],), weight, epsilon)
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(rows.dtype)


def _rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding of [rows, heads, head_dim] in Llama's halves layout; `sines` carry the half's sign."""
    half = heads.shape[-1] // 2
    return heads * cosines + heads.roll(half, dims=-1) * sines


def _rope_angles(rope: Rope, head_dim: int, positions: int) -> Tensor:
    """Angles [positions, head_dim / 2] in fp32.

    The "llama3" scaling is that of Llama 3.1: wavelengths beyond the original context are stretched by
    `factor`, short ones kept, those between blended.
    """
    frequencies = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    elif rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        blend = (rope.original_context / wavelengths - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        blend = blend.clamp(0, 1)
        frequencies = (1 - blend) * frequencies / rope.factor + blend * frequencies
    return torch.outer(torch.arange(positions).float(), frequencies)
