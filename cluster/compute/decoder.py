"""The fast path: the decoder layers of one stage, over packed rows, and the cache that they fill."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute.attention import Attend, AttentionShape, attention
from cluster.compute.batch import Batch, Layout
from cluster.compute.kv_cache import KvCache
from cluster.compute.linear import Linear
from cluster.compute.norms import Apply
from cluster.compute.paged_kv_cache import PagedKvCache
from cluster.compute.rotary import rotations
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec

_Layer = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, ready to apply; None for parts that its family lacks. `sinks` is [heads]."""

    input_norm: Apply
    qkv: Linear
    head_norm: Apply | None
    sinks: Tensor | None
    output: Linear
    attended_norm: Apply | None
    mlp_norm: Apply
    mlp: Apply
    mlp_done_norm: Apply | None


@dataclass(frozen=True, slots=True)
class StageWeights:
    """The weights of one stage. The first stage has `embedding`, the last one `final_norm` and `head`.

    `embedding` is [vocabulary, hidden]; learned `positions` are [positions, hidden], on the first stage only.
    """

    layers: list[LayerWeights]
    embedding: Tensor | None
    positions: Tensor | None
    final_norm: Apply | None
    head: Linear | None


class Decoder:
    """Runs a stage's layers on packed rows [rows, hidden] of any mix of prefill chunks and decode steps.

    It looks up each layer's parts once, because one row on a small model costs as much Python as arithmetic.
    """

    def __init__(
        self,
        card: ModelCard,
        spec: StageSpec,
        weights: StageWeights,
        cache: KvCache,
        row_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.row_dtype = row_dtype
        self.cache = cache
        self._weights = weights
        self._embedding_scale = card.embedding_scale
        self._logit_softcap = card.logit_softcap
        ropes = [rope for rope in (card.rope, card.local_rope) if rope and not card.learned_positions]
        layers = range(spec.first_layer, spec.end_layer)
        # A window as wide as the context hides nothing.
        windows = [window if (window := card.window(at)) < spec.context_tokens else 0 for at in layers]
        kinds = sorted(set(windows))
        self._layout = Layout(
            kinds,
            card.heads // card.kv_heads,
            [rotations(rope, card.head_dim, spec.context_tokens, device) for rope in ropes],
            weights.positions,
            row_dtype,
            device,
            cache if isinstance(cache, PagedKvCache) else None,
        )
        self._layers = [
            _layer(
                held,
                attention(
                    AttentionShape(
                        layer=index,
                        heads=card.heads,
                        kv_heads=card.kv_heads,
                        head_dim=card.head_dim,
                        scale=card.attention_scale or card.head_dim**-0.5,
                        window=kinds.index(windows[index]),
                        rope=card.rope_kind(layers[index]),
                        softcap=card.attention_softcap,
                        sinks=held.sinks,
                    ),
                    cache,
                    held.head_norm,
                ),
            )
            for index, held in enumerate(weights.layers)
        ]

    def batch(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> Batch:
        """Lay out one step and reserve cache room for its rows."""
        for slot, start, count in zip(slots, starts, counts, strict=True):
            self.cache.reserve(slot, start + count)
        return self._layout.batch(slots, starts, counts)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return rows [rows, hidden] of token ids [rows], on the first stage."""
        assert self._weights.embedding is not None
        rows = F.embedding(token_ids, self._weights.embedding).to(self.row_dtype)
        return rows if self._embedding_scale == 1.0 else rows * self._embedding_scale

    def forward(self, rows: Tensor, batch: Batch) -> Tensor:
        """Return rows [rows, hidden] after this stage's layers, which store their keys and values in the cache."""
        if batch.learned is not None:
            rows = rows + batch.learned
        for layer in self._layers:
            rows = layer(rows, batch)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """Return next-token logits [rows, vocabulary] of rows [rows, hidden] behind the last layer."""
        assert self._weights.final_norm is not None
        assert self._weights.head is not None
        logits = self._weights.head(self._weights.final_norm(rows))
        if not self._logit_softcap:
            return logits
        return torch.tanh(logits / self._logit_softcap) * self._logit_softcap


def _layer(held: LayerWeights, attend: Attend) -> _Layer:
    input_norm, qkv, output, attended_norm = held.input_norm, held.qkv, held.output, held.attended_norm
    mlp_norm, mlp, mlp_done_norm = held.mlp_norm, held.mlp, held.mlp_done_norm

    def apply(rows: Tensor, batch: Batch) -> Tensor:
        attended = output(attend(qkv(input_norm(rows)), batch))
        if attended_norm is not None:
            attended = attended_norm(attended)
        rows = rows + attended
        done = mlp(mlp_norm(rows))
        if mlp_done_norm is not None:
            done = mlp_done_norm(done)
        return rows + done

    return apply
