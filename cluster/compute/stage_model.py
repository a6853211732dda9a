"""The computation of a stage's layers: one interface over the fast path and the compatibility path."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from cluster.compute.decoder import Decoder
from cluster.compute.kv_cache import KvCache
from cluster.compute.paged_kv_cache import PagedKvCache
from cluster.compute.rows import kept_dtype
from cluster.compute.weights import ReadTensor, load_stage, row_dtype
from cluster.models.manifest import Manifest
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec

# Devices on which starting a kernel takes longer than copying a slot's keys and values.
_PAGED = ("cuda",)


class StageModel(Protocol):
    """A stage's layers, the cache that they fill, and the model's ends if the stage has them.

    Rows are [rows, hidden] in `row_dtype`, those of several slots packed one group behind the other. `embed` is
    for first stages, `logits` for last ones. Positions may be written again: a slot's content ends with the rows
    that were written last.
    """

    @property
    def row_dtype(self) -> torch.dtype: ...

    @property
    def cache(self) -> KvCache: ...

    def batch(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> Any:
        """Lay out one step for `forward` and reserve cache room.

        Group i is positions starts[i] to starts[i] + counts[i] of slots[i].
        """

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return rows [rows, hidden] of token ids [rows]."""

    def forward(self, rows: Tensor, batch: Any) -> Tensor:
        """Return rows [rows, hidden] after this stage's layers, which store their keys and values in the cache."""

    def logits(self, rows: Tensor) -> Tensor:
        """Return next-token logits [rows, vocabulary] of rows [rows, hidden] behind the last layer."""


def load_stage_model(
    card: ModelCard, manifest: Manifest, spec: StageSpec, read: ReadTensor, device: torch.device
) -> StageModel:
    """Load a stage's weights by the path that its model's card names.

    Raise WeightsMismatch or ModelInvalid, and ModelUnsupported if the compatibility path is not installed.
    """
    if card.path == "compat":
        # It imports transformers, which most nodes need not have.
        from cluster.compute import compat

        return compat.load(card, manifest, spec, read, device)
    weights = load_stage(card, manifest, spec, read, device)
    dtype = row_dtype(spec.precision, device)
    return Decoder(card, spec, weights, new_cache(card, spec, device), dtype, device)


def new_cache(card: ModelCard, spec: StageSpec, device: torch.device) -> KvCache:
    """Return an empty cache for a stage's layers, and for its output rows if another stage follows."""
    shapes = [card.kv_shape(layer) for layer in range(spec.first_layer, spec.end_layer)]
    dtype, kept = row_dtype(spec.precision, device), kept_dtype(spec.wire)
    output_dim = 0 if spec.is_last else card.hidden
    if device.type in _PAGED:
        return PagedKvCache(shapes, spec.kv_blocks, dtype, device, output_dim=output_dim, output_dtype=kept)
    return KvCache(
        shapes,
        spec.kv_blocks,
        dtype,
        device,
        output_dim=output_dim,
        output_dtype=kept,
        context_tokens=spec.context_tokens,
    )
