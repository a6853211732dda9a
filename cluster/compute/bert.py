"""BERT's encoder and its relatives over packed rows: no padding, texts of any lengths side by side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute.linear import Linear, pack
from cluster.compute.norms import Apply, layer_norm
from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.bert_family import BERT_FAMILIES, BertFamily, refuse_variants
from cluster.models.family import ACTIVATIONS
from cluster.models.model_config import ModelConfig

LoadTensor = Callable[[str], Tensor | None]
"""Loads a tensor by its name behind the checkpoint's root; None if the files have none."""


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Linear
    attended: Linear
    attended_norm: Apply
    up: Linear
    down: Linear
    done_norm: Apply


class BertEncoder:
    """Encodes packed texts, one behind the other, as rows [rows, hidden]. Each text attends only to itself."""

    def __init__(self, config: dict[str, Any], load: LoadTensor) -> None:
        """Load the encoder. `load` gives floats on the computing device.

        Raise ModelUnsupported or ModelInvalid.
        """
        family = BERT_FAMILIES[str(config.get("model_type"))]
        read = ModelConfig(
            config, aliases=family.aliases, defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12}
        )
        refuse_variants(config)
        activation = ACTIVATIONS.get(read.get("hidden_act"))
        if activation not in ("gelu", "gelu_tanh"):
            raise ModelUnsupported(
                f"config.json: {read.name('hidden_act')} {read.get('hidden_act')!r} is not supported, only gelu"
            )
        self._approximate = "tanh" if activation == "gelu_tanh" else "none"
        self._heads = read.count("num_attention_heads")
        self._epsilon = read.number("layer_norm_eps")
        self._load = load
        self.hidden = read.count("hidden_size")
        self._position_begin = read.count("pad_token_id", 1) + 1 if family.skips_positions else 0
        self._words = self._need("embeddings.word_embeddings.weight")
        self._positions = self._need("embeddings.position_embeddings.weight")
        kinds = load("embeddings.token_type_embeddings.weight")
        if kinds is not None:  # Texts are encoded one at a time, so they are always of the first kind.
            self._positions = self._positions + kinds[0]
        self._embedding_norm = self._norm("embeddings.LayerNorm")
        self._layers = [self._layer(family, family.layer.format(at)) for at in range(read.layers())]
        self.context_tokens = len(self._positions) - self._position_begin
        self.vocabulary = len(self._words)

    def forward(self, token_ids: Tensor, counts: list[int]) -> Tensor:
        """Return the last hidden rows [rows, hidden] of packed token ids [rows].

        `counts[i]` of the ids belong to text i.
        """
        places = torch.cat([torch.arange(count) for count in counts]) + self._position_begin
        rows = F.embedding(token_ids, self._words) + F.embedding(places.to(token_ids.device), self._positions)
        rows = self._embedding_norm(rows)
        for layer in self._layers:
            rows = layer.attended_norm(rows + layer.attended(self._attend(layer.qkv(rows), counts)))
            inner = F.gelu(layer.up(rows), approximate=self._approximate)
            rows = layer.done_norm(rows + layer.down(inner))
        return rows

    def _attend(self, qkv: Tensor, counts: list[int]) -> Tensor:
        heads = qkv.view(len(qkv), 3, self._heads, -1).permute(1, 2, 0, 3)
        attended = []
        for text in torch.split(heads, counts, dim=2):
            queries, keys, values = text.unsqueeze(1).unbind(0)
            attended.append(F.scaled_dot_product_attention(queries, keys, values).squeeze(0))
        return torch.cat(attended, 1).transpose(0, 1).reshape(len(qkv), -1)

    def _layer(self, family: BertFamily, prefix: str) -> _Layer:
        return _Layer(
            qkv=self._matrix(*(prefix + name for name in (family.query, family.key, family.value))),
            attended=self._matrix(prefix + family.attended),
            attended_norm=self._norm(prefix + family.attended_norm),
            up=self._matrix(prefix + family.up),
            down=self._matrix(prefix + family.down),
            done_norm=self._norm(prefix + family.done_norm),
        )

    def _matrix(self, *names: str) -> Linear:
        weight = torch.cat([self._need(f"{name}.weight") for name in names])
        bias = torch.cat([self._need(f"{name}.bias") for name in names])
        return pack(weight, bias, "fp32")

    def _norm(self, name: str) -> Apply:
        weight, bias = self._load(f"{name}.weight"), self._load(f"{name}.bias")
        if weight is None:  # The very old name.
            weight, bias = self._load(f"{name}.gamma"), self._load(f"{name}.beta")
        if weight is None or bias is None:
            raise ModelInvalid(f"the checkpoint lacks {name}")
        return layer_norm(weight, bias, self._epsilon)

    def _need(self, name: str) -> Tensor:
        tensor = self._load(name)
        if tensor is None:
            raise ModelInvalid(f"the checkpoint lacks {name}")
        return tensor
