"""Attention of packed rows over the slots that they belong to."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute.batch import FOLDED_ROWS, Batch, RowGroup
from cluster.compute.kv_cache import KvCache
from cluster.compute.norms import Apply
from cluster.compute.paged_kv_cache import PagedKvCache
from cluster.compute.rotary import rotate

Attend = Callable[[Tensor, Batch], Tensor]
"""Fused queries, keys and values [rows, (heads + 2 * kv_heads) * head_dim] to [rows, heads * head_dim]."""

_OverSlot = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Queries [count, heads, head_dim] over keys and values [kv_heads, seen, head_dim]: [count, heads * head_dim].

Keys and values may also be [count, kv_heads, seen, head_dim], each query's own, with a mask [count, 1, 1, seen].
"""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One layer's attention. `layer` counts within the stage.

    `window` and `rope` choose among a batch's kinds; learned positions have no rope. A softcap of 0 means none.
    `sinks` [heads] take their share of attention and contribute nothing.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    rope: int | None
    softcap: float
    sinks: Tensor | None


def attention(shape: AttentionShape, cache: KvCache, head_norm: Apply | None) -> Attend:
    """Return a layer's attention over `cache`.

    `head_norm` normalizes queries and keys [rows, heads + kv_heads, head_dim] before they are rotated.
    """
    heads, turning, head_dim = shape.heads, shape.heads + shape.kv_heads, shape.head_dim
    layer, window, rope = shape.layer, shape.window, shape.rope
    paged, write = cache if isinstance(cache, PagedKvCache) else None, cache.write
    over_slot = _weighed_by_hand(shape) if shape.softcap or shape.sinks is not None else _fused(shape)

    def attend_group(group: RowGroup, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        first = group.firsts[window]
        if paged is not None and group.places is not None:
            all_keys, all_values = paged.read(layer, group.places[first:] if first else group.places)
        else:
            all_keys, all_values = write(layer, group.slot, group.start, keys, values)
            if first:
                all_keys, all_values = all_keys[:, first:], all_values[:, first:]
        return over_slot(queries, all_keys, all_values, group.masks[window])

    def attend(qkv: Tensor, batch: Batch) -> Tensor:
        split = qkv.view(qkv.shape[0], -1, head_dim)
        turned, values = split[:, :turning], split[:, turning:]
        if head_norm is not None:
            turned = head_norm(turned)
        if rope is not None:
            turned = rotate(turned, batch.turns[rope])
        queries, keys = turned[:, :heads], turned[:, heads:]
        if paged is not None and batch.places is not None:
            paged.store(layer, batch.places, keys, values)
        groups = batch.groups
        if len(groups) == 1:
            return attend_group(groups[0], queries, keys, values)
        rows = (torch.split_with_sizes(part, batch.counts) for part in (queries, keys, values))
        return torch.cat([attend_group(*group) for group in zip(groups, *rows, strict=True)])

    return attend


def _fused(shape: AttentionShape) -> _OverSlot:
    kv_heads, group, head_dim, scale = shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim, shape.scale
    sdpa = F.scaled_dot_product_attention

    def over_slot(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        count = queries.shape[0]
        if keys.dim() == 4:
            folded = queries.reshape(count, kv_heads, group, head_dim)
            return sdpa(folded, keys, values, attn_mask=mask, scale=scale).reshape(count, -1)
        if count == 1:
            # The query heads that share a key-value head become query rows of it. On CPUs this is 2 times (fp32)
            # to 20 times (bf16) faster than a kernel that repeats keys and values.
            folded = queries.reshape(1, kv_heads, group, head_dim)
            return sdpa(folded, keys.unsqueeze(0), values.unsqueeze(0), scale=scale).reshape(1, -1)
        split = queries.view(count, kv_heads, group, head_dim).permute(1, 2, 0, 3)
        if count <= FOLDED_ROWS:
            folded = split.reshape(1, kv_heads, group * count, head_dim)
            out = sdpa(folded, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scale)
            out = out.view(kv_heads, group, count, head_dim)
        else:
            seen = (kv_heads, group, keys.shape[1], head_dim)
            spread_keys, spread_values = keys.unsqueeze(1).expand(seen), values.unsqueeze(1).expand(seen)
            out = sdpa(split, spread_keys, spread_values, attn_mask=mask, scale=scale)
        return out.permute(2, 0, 1, 3).reshape(count, -1)

    return over_slot


def _weighed_by_hand(shape: AttentionShape) -> _OverSlot:
    """Return attention with features that torch's fused attention lacks: capped scores, and sinks."""
    group, scale, softcap = shape.heads // shape.kv_heads, shape.scale, shape.softcap
    sinks = None if shape.sinks is None else shape.sinks.float().view(shape.kv_heads, group, 1, 1)

    def weigh(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, sink: Tensor | None) -> Tensor:
        """Return attention of queries [kv_heads, group, count, dim] over keys and values [kv_heads, seen, dim]."""
        folded = queries.reshape(queries.shape[0], -1, queries.shape[-1])
        scores = torch.bmm(folded, keys.mT).float().mul_(scale).view(*queries.shape[:-1], -1)
        if softcap:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        if mask is not None:
            scores += mask
        if sink is not None:
            scores = torch.cat((scores, sink.expand(*scores.shape[:-1], 1)), dim=-1)
        weights = scores.softmax(dim=-1)
        if sink is not None:
            weights = weights[..., :-1]
        folded = weights.reshape(*folded.shape[:2], -1).to(values.dtype)
        return torch.bmm(folded, values).view(queries.shape)

    def over_slot(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        count = queries.shape[0]
        if keys.dim() == 4:
            # Each query has its own key-value heads, [count * kv_heads] in all, and is the only row of them.
            own = queries.reshape(-1, group, 1, shape.head_dim)
            repeated = None if mask is None else mask.repeat_interleave(shape.kv_heads, 0)
            sink = None if sinks is None else sinks.repeat(count, 1, 1, 1)
            return weigh(own, keys.flatten(0, 1), values.flatten(0, 1), repeated, sink).reshape(count, -1)
        split = queries.reshape(count, shape.kv_heads, group, shape.head_dim).permute(1, 2, 0, 3)
        if mask is not None:
            mask = mask[:count]
        if count <= FOLDED_ROWS:
            out = weigh(split, keys, values, mask, sinks)
        else:
            # One key-value head at a time: a whole chunk's scores would take as much memory as a layer.
            parts = (slice(head, head + 1) for head in range(shape.kv_heads))
            out = torch.cat(
                [
                    weigh(split[part], keys[part], values[part], mask, None if sinks is None else sinks[part])
                    for part in parts
                ]
            )
        return out.permute(2, 0, 1, 3).reshape(count, -1)

    return over_slot
