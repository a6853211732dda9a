"""The compatibility path: any causal model of transformers, of which only one stage's layers exist and run.

The model's own forward code runs from its first line, on one packed row of tokens. Before the stage's first layer,
the rows from upstream replace the rows of that code. They leave the model after the stage's last layer. So rotary
embeddings, scales and other family-specific steps need no code here.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cluster.compute.compat_attention import AttentionBatch, AttentionContext, LayerAttention
from cluster.compute.compat_build import build, find_layers, load_weights
from cluster.compute.kv_cache import KvCache
from cluster.compute.stage_model import new_cache
from cluster.compute.weights import ReadTensor, row_dtype
from cluster.errors import ModelUnsupported
from cluster.models.manifest import Manifest
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec


def load(
    card: ModelCard, manifest: Manifest, spec: StageSpec, read: ReadTensor, device: torch.device
) -> "CompatModel":
    """Load a stage's layers and run them once as a test.

    Raise ModelUnsupported for what transformers or our attention cannot run; raise WeightsMismatch or ModelInvalid
    for wrong files.
    """
    dtype = row_dtype(spec.precision, device)
    model = build(manifest.config, dtype)
    load_weights(model, card, manifest, spec, read, device)
    loaded = CompatModel(model, card, spec, new_cache(card, spec, device), dtype, device)
    loaded.try_out()
    return loaded


class CompatModel:
    """A stage of transformers' model over packed rows."""

    def __init__(
        self,
        model: Any,
        card: ModelCard,
        spec: StageSpec,
        cache: KvCache,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.cache = cache
        self.row_dtype = dtype
        self._device = device
        self._model = model
        self._spec = spec
        self._family = card.family
        self._context = AttentionContext(cache)
        self._flow = _Flow(first=0 if spec.is_first else spec.first_layer, end=spec.end_layer, layers=card.layers)
        self._flow.replaces = not spec.is_first
        parent, name = find_layers(model, card.layers)
        layers: nn.ModuleList = getattr(parent, name)
        self._attentions = [
            self._take_attention(layers[number], number) for number in range(spec.first_layer, spec.end_layer)
        ]
        held = [_Layer(layer, number, self._flow) for number, layer in enumerate(layers)]
        setattr(parent, name, nn.ModuleList(held))

    def batch(self, slots: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> AttentionBatch:
        """Lay out one step and reserve cache room for its rows."""
        offsets, rows = [], 0
        for slot, start, count in zip(slots, starts, counts, strict=True):
            self.cache.reserve(slot, start + count)
            offsets.append(rows)
            rows += count
        positions = torch.cat(
            [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        )
        return AttentionBatch(list(slots), list(starts), list(counts), offsets, positions.to(self._device))

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return rows [rows, hidden] of token ids [rows], on the first stage."""
        rows: Tensor = self._model.get_input_embeddings()(token_ids.long())
        return rows

    def forward(self, rows: Tensor, batch: AttentionBatch) -> Tensor:
        """Return rows [rows, hidden] after this stage's layers, which store their keys and values in the cache."""
        self._context.begin(batch)
        self._flow.rows = rows.unsqueeze(0)
        try:
            self._model.base_model(
                inputs_embeds=self._flow.rows, position_ids=batch.positions.unsqueeze(0), use_cache=False
            )
        except _StageDone as done:
            return done.rows.squeeze(0)
        raise AssertionError("the stage's last layer never ran")

    def logits(self, rows: Tensor) -> Tensor:
        """Return next-token logits [rows, vocabulary] of rows [rows, hidden] behind the last layer."""
        self._flow.rows = rows.unsqueeze(0)
        self._flow.is_over = True
        try:
            positions = torch.zeros(1, len(rows), dtype=torch.long, device=rows.device)
            answer = self._model(inputs_embeds=self._flow.rows, position_ids=positions, use_cache=False)
        finally:
            self._flow.is_over = False
        logits: Tensor = answer.logits.squeeze(0)
        return logits

    def try_out(self) -> None:
        """Run one token, so that a model that does not fit our attention is refused now and by name.

        Raise ModelUnsupported.
        """
        slot = self._spec.slots
        try:
            batch = self.batch([slot], [0], [1])
            rows = torch.zeros(1, self._model.get_input_embeddings().embedding_dim, dtype=self.row_dtype)
            rows = self.forward(rows.to(self._device), batch)
            if self._spec.is_last:
                self.logits(rows)
        except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError, RuntimeError) as error:
            raise ModelUnsupported(
                f"model family {self._family!r} does not run layer by layer: {type(error).__name__}: {error}"
            ) from error
        finally:
            self.cache.free(slot)
        if any(attention.calls != 1 for attention in self._attentions):
            raise ModelUnsupported(f"model family {self._family!r} has attention that cannot be taken over")

    def _take_attention(self, layer: nn.Module, number: int) -> LayerAttention:
        config = self._model.config
        kinds: list[str] = getattr(config, "layer_types", None) or []
        is_windowed = bool(kinds) and kinds[number] == "sliding_attention"
        attention = LayerAttention(
            self._context,
            number - self._spec.first_layer,
            (getattr(config, "sliding_window", None) or 0) if is_windowed else 0,
        )
        for module in layer.modules():
            module.layer_attention = attention  # type: ignore[assignment]
            if hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj"):
                attention.latent = _take_latents(module)
        return attention


def _take_latents(attention: Any) -> tuple[Tensor, Tensor]:
    """Make multi-head latent attention pass latents instead of every head's keys and values.

    Keys are latents with their rotary part behind, values are the latents: q . (U c) = (q U) . c. The projection
    of the outputs is applied once per query instead of once per cached token (DeepSeek-V2, arXiv:2405.04434, 2.1).
    Return the projections ([heads, nope, rank], [heads, value, rank]).
    """
    nope, value = attention.qk_nope_head_dim, attention.v_head_dim
    up = attention.kv_b_proj.weight.view(-1, nope + value, attention.kv_lora_rank)
    attention.expand_kv = lambda latents, rotary: (torch.cat((latents, rotary), -1), latents)
    attention.kv_b_proj = None
    return up[:, :nope].contiguous(), up[:, nope:].contiguous()


class _Flow:
    """The points at which the stage's rows enter and leave the model's own loop over its layers."""

    def __init__(self, *, first: int, end: int, layers: int) -> None:
        self.first, self.end, self.layers = first, end, layers
        self.replaces = False
        self.rows: Tensor | None = None
        self.is_over = False
        self.answers_in_tuples = False


class _StageDone(Exception):
    """The stage's last layer has run. Other stages do the rest of the model's work on its rows."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows


class _Layer(nn.Module):
    """A layer of this stage, or the empty place of another stage's layer."""

    def __init__(self, inner: nn.Module, number: int, flow: _Flow) -> None:
        super().__init__()
        self.inner = inner
        self._number = number
        self._flow = flow

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        flow = self._flow
        if flow.is_over:
            return (flow.rows,) if flow.answers_in_tuples else flow.rows
        if self._number < flow.first:
            return kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        if self._number == flow.first and flow.replaces:
            if "hidden_states" in kwargs:
                kwargs["hidden_states"] = flow.rows
            else:
                args = (flow.rows, *args[1:])
        answer = self.inner(*args, **kwargs)
        if isinstance(answer, tuple):
            flow.answers_in_tuples = True
        if self._number == flow.end - 1:
            raise _StageDone(answer[0] if isinstance(answer, tuple) else answer)
        return answer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # Models read attributes of their layers, for example the kind of each.
            return getattr(super().__getattr__("inner"), name)
