"""Attention of transformers' layers over our own key-value slots, called through its attention interface."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute.kv_cache import KvCache
from cluster.errors import ModelUnsupported

ATTENTION = "millrace"
"""The name under which `attend` is registered."""

_HARMLESS = (
    frozenset(("dropout", "is_causal", "head_mask", "layer_idx", "use_cache", "past_key_values", "return_dict"))
    | frozenset(("position_ids", "cache_position", "position_embeddings", "logits_to_keep"))
    | frozenset(("output_attentions", "output_hidden_states"))
)
"""Arguments that layers pass along without new information: steps know their positions and have no dropout."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Packed row groups of one step: group i is rows [offsets[i], offsets[i] + counts[i]) of slot slots[i].

    `positions` [rows] are the rows' positions.
    """

    slots: list[int]
    starts: list[int]
    counts: list[int]
    offsets: list[int]
    positions: Tensor

    @property
    def groups(self) -> "zip[tuple[int, int, int, int]]":
        return zip(self.slots, self.starts, self.counts, self.offsets, strict=True)


@dataclass(slots=True)
class AttentionContext:
    """The shared state of a stage's attention modules: the cache, the running step, and its masks."""

    cache: KvCache
    batch: AttentionBatch | None = None
    masks: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    def begin(self, batch: AttentionBatch) -> None:
        """Set the running step, and drop the masks of the previous one."""
        self.batch = batch
        self.masks.clear()

    def mask(self, start: int, count: int, window: int, like: Tensor) -> Tensor:
        """Return an additive mask [count, start + count].

        It hides later positions, and positions `window` or more tokens ago.
        """
        key = (start, count, window)
        if key not in self.masks:
            queries = torch.arange(start, start + count, device=like.device)[:, None]
            keys = torch.arange(start + count, device=like.device)
            hidden = keys > queries
            if window:
                hidden |= keys <= queries - window
            mask = torch.zeros(count, start + count, device=like.device, dtype=like.dtype)
            self.masks[key] = mask.masked_fill_(hidden, float("-inf"))
        return self.masks[key]


@dataclass(slots=True)
class LayerAttention:
    """One layer's attention. `index` counts within the stage. `window` is 0 if the layer attends to everything.

    `latent` holds an MLA layer's up-projections ([heads, nope, rank], [heads, value, rank]). Such a layer keeps
    one latent per token. Its queries and outputs pass through the projections instead of every cached token.
    """

    context: AttentionContext
    index: int
    window: int
    latent: tuple[Tensor, Tensor] | None = None
    calls: int = 0


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the attention [1, rows, heads, value_dim] of one layer.

    `query` is [1, heads, rows, key_dim], `key` and `value` are [1, kv_heads, rows, dim]. Raise ModelUnsupported
    for an unknown argument that would change the result. `scaling` is a factor on the products of query and key;
    `softcap` bounds them, in their unit.
    """
    layer: LayerAttention = module.layer_attention
    batch = layer.context.batch
    assert batch
    unknown = [name for name, passed in others.items() if passed is not None and name not in _HARMLESS]
    if attention_mask is not None or unknown:
        raise ModelUnsupported(
            f"{type(module).__name__} needs {unknown or 'a mask of its own'}, which is not supported"
        )
    layer.calls += 1
    window = sliding_window or layer.window
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    weigh = _plain if softcap is None and s_aux is None else _special(softcap, s_aux)
    queries = query[0]
    if layer.latent:
        queries = _into_latent(queries, layer.latent[0])
    parts = []
    for slot, start, count, offset in batch.groups:
        rows = slice(offset, offset + count)
        new_keys, new_values = key[0, :, rows].transpose(0, 1), value[0, :, rows].transpose(0, 1)
        if layer.latent:
            new_values = new_values[..., :0]
        keys, values = layer.context.cache.write(layer.index, slot, start, new_keys, new_values)
        if layer.latent:
            values = keys[..., : value.shape[-1]]
        begin = max(0, start + 1 - window) if window and count == 1 else 0
        mask = layer.context.mask(start, count, window, query) if count > 1 else None
        parts.append(_folded(queries[:, rows], keys[:, begin:], values[:, begin:], mask, scale, weigh))
    attended = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
    if layer.latent:
        attended = torch.bmm(attended, layer.latent[1].transpose(1, 2))
    return attended.transpose(0, 1).contiguous().unsqueeze(0), None


_Weigh = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]


def _folded(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, weigh: _Weigh
) -> Tensor:
    """Fold query heads that share a key-value head into its query rows. Return [heads, count, value_dim]."""
    heads, count, _ = queries.shape
    group = heads // keys.shape[0]
    folded = queries.reshape(keys.shape[0], group * count, -1)
    if mask is not None and group > 1:
        mask = mask.repeat(group, 1)
    return weigh(folded, keys, values, mask, scale).reshape(heads, count, -1)


def _plain(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(
        queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scale
    ).squeeze(0)


def _special(softcap: float | None, sinks: Tensor | None) -> _Weigh:
    """Return attention with capped scores, and with a sink per head that takes weight and contributes nothing."""

    def weigh(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        scores = torch.bmm(queries, keys.transpose(1, 2)) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            scores = scores + mask
        if sinks is None:
            return torch.bmm(scores.float().softmax(-1).to(values.dtype), values)
        per_head = scores.shape[0] * scores.shape[1] // sinks.numel()
        sink = sinks.repeat_interleave(per_head).view(scores.shape[0], -1, 1)
        with_sink = torch.cat((scores, sink.to(scores.dtype)), -1)
        return torch.bmm(with_sink.float().softmax(-1)[..., :-1].to(values.dtype), values)

    return weigh


def _into_latent(queries: Tensor, up: Tensor) -> Tensor:
    """Return queries [heads, rows, nope + rope] in the latents' space: [heads, rows, rank + rope]."""
    nope = up.shape[1]
    return torch.cat((torch.bmm(queries[..., :nope], up), queries[..., nope:]), -1)
