"""BERT and its relatives: the names of their parts, and the variants that are not supported."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import ModelUnsupported


@dataclass(frozen=True, slots=True)
class BertFamily:
    """The names of the parts. `skips_positions`: RoBERTa counts from the padding token's id on."""

    layer: str = "encoder.layer.{}."
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attended: str = "attention.output.dense"
    attended_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    done_norm: str = "output.LayerNorm"
    skips_positions: bool = False
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_ROBERTA = BertFamily(skips_positions=True)

BERT_FAMILIES: dict[str, BertFamily] = {
    "bert": BertFamily(),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": BertFamily(
        layer="transformer.layer.{}.",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attended="attention.out_lin",
        attended_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        done_norm="output_layer_norm",
        aliases={
            "hidden_size": ("dim",),
            "num_hidden_layers": ("n_layers",),
            "num_attention_heads": ("n_heads",),
            "hidden_act": ("activation",),
        },
    ),
}


def refuse_variants(config: dict[str, Any]) -> None:
    """Raise ModelUnsupported for what some members of these families have beyond the encoder."""
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise ModelUnsupported(
            f"config.json: position_embedding_type {config['position_embedding_type']!r} "
            "is not supported, only 'absolute'"
        )
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise ModelUnsupported("config.json: is_decoder is not supported: only encoders embed texts")
    if config.get("quantization_config"):
        raise ModelUnsupported("config.json: quantization_config is not supported. Use the unquantized weights.")
