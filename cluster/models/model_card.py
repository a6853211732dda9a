"""A model's shape and cost in bytes, from its config.json. It refuses unsupported settings by name."""

from dataclasses import dataclass
from typing import Any, Literal

from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.card_settings import Experts, read_activation, read_experts, read_ropes, read_windows
from cluster.models.family import FAMILIES, Activation, Family
from cluster.models.layer_cost import BYTES_PER_VALUE, PRECISIONS, QUANTIZED, KvShape, LayerCost, Precision
from cluster.models.model_config import ModelConfig
from cluster.models.rope import Rope

__all__ = [
    "BYTES_PER_VALUE",
    "PRECISIONS",
    "QUANTIZED",
    "Experts",
    "KvShape",
    "LayerCost",
    "ModelCard",
    "Precision",
    "Rope",
    "read_card",
]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Everything about a model that planning, loading and running need.

    `path` is "compat" for models that transformers' own layers run; such a card has `layer_costs` and `kv_shapes`.
    `windows` has the number of tokens that each layer attends to, 0 for all; empty means all for every layer.
    Layers with a window use `local_rope` if there is one. A softcap of 0 means none; an `attention_scale` of 0
    means head_dim ** -0.5.
    """

    family: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    norm_epsilon: float
    rope: Rope
    tied_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    output_bias: bool = False
    activation: Activation = "silu"
    attention_scale: float = 0.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    windows: tuple[int, ...] = ()
    local_rope: Rope | None = None
    experts: Experts | None = None
    stored_value_bytes: int = 4
    path: Literal["fast", "compat"] = "fast"
    layer_costs: tuple[LayerCost, ...] = ()
    kv_shapes: tuple[KvShape, ...] = ()

    @property
    def learned_positions(self) -> bool:
        """Whether positions are rows of a table, added to the embeddings, instead of rotations."""
        return self.path == "fast" and FAMILIES[self.family].learned_positions

    def rope_kind(self, layer: int) -> int | None:
        """Return which rope rotates this layer: 0 for `rope`, 1 for `local_rope`, None for learned positions."""
        if self.learned_positions:
            return None
        return 1 if self.local_rope and self.window(layer) else 0

    def window(self, layer: int) -> int:
        """Return the number of tokens that this layer attends to, 0 for all."""
        return self.windows[layer] if self.windows else 0

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer in self.experts.layers

    def kv_shape(self, layer: int) -> KvShape:
        """Return the shape of one token's keys and values in this layer."""
        return self.kv_shapes[layer] if self.kv_shapes else KvShape(self.kv_heads, self.head_dim, self.head_dim)

    def layer_cost(self, layer: int = 0) -> LayerCost:
        """Return one layer's weights in values."""
        if self.layer_costs:
            return self.layer_costs[layer]
        attention = _attention_cost(self, FAMILIES[self.family])
        mlp = _mlp_cost(self, FAMILIES[self.family], layer)
        return LayerCost(
            attention.matrix_values + mlp.matrix_values,
            attention.matrix_rows + mlp.matrix_rows,
            attention.plain_values + mlp.plain_values,
        )

    def layer_bytes(self, precision: Precision, layer: int = 0) -> int:
        """Return the bytes of one layer's weights."""
        return self.layer_cost(layer).bytes_at(precision)

    def embedding_bytes(self, precision: Precision) -> int:
        """Return the bytes of the first stage's table of embeddings, and of learned positions.

        It is not quantized, and no wider than in the file.
        """
        values = (self.vocabulary + self.context_tokens * self.learned_positions) * self.hidden
        return values * min(self.stored_value_bytes, BYTES_PER_VALUE[precision])

    def head_bytes(self, precision: Precision) -> int:
        """Return the bytes of the last stage's norm and matrix from rows to logits."""
        return LayerCost(self.vocabulary * self.hidden, self.vocabulary, self.hidden).bytes_at(precision)

    def total_bytes(self, precision: Precision) -> int:
        """Return the bytes of all weights on one machine."""
        layers = sum(self.layer_bytes(precision, layer) for layer in range(self.layers))
        return layers + self.embedding_bytes(precision) + self.head_bytes(precision)

    def kv_bytes_per_token(self, precision: Precision, layer: int = 0) -> int:
        """Return the bytes of one token's KV cache in one layer."""
        shape = self.kv_shape(layer)
        return shape.kv_heads * (shape.key_dim + shape.value_dim) * BYTES_PER_VALUE[precision]


def _attention_cost(card: ModelCard, family: Family) -> LayerCost:
    queries, keys = card.heads * card.head_dim, card.kv_heads * card.head_dim
    norms = card.hidden * (2 if family.sandwich else 1) * (2 if family.norm == "layer" else 1)
    biases = (queries + 2 * keys) * card.attention_bias + card.hidden * card.output_bias
    return LayerCost(
        matrix_values=card.hidden * (2 * queries + 2 * keys),
        matrix_rows=queries + 2 * keys + card.hidden,
        plain_values=norms + biases + 2 * card.head_dim * family.qk_norm + card.heads * family.sinks,
    )


def _mlp_cost(card: ModelCard, family: Family, layer: int) -> LayerCost:
    norms = card.hidden * (2 if family.sandwich else 1) * (2 if family.norm == "layer" else 1)
    count, width, router = 1, card.intermediate, 0
    if card.experts and card.has_experts(layer):
        count, width = card.experts.count, card.experts.intermediate
        router = count * (card.hidden + card.mlp_bias)
    inner = width * (2 if family.gated else 1)
    return LayerCost(
        matrix_values=count * card.hidden * (inner + width),
        matrix_rows=count * (inner + card.hidden),
        plain_values=norms + router + count * (inner + card.hidden) * card.mlp_bias,
    )


def read_card(config: dict[str, Any]) -> ModelCard:
    """Return the card of a config.json. Raise ModelUnsupported or ModelInvalid, naming the setting."""
    kind = config.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        # Import it late: compat_card imports this module.
        from cluster.models.compat_card import compat_card

        return compat_card(config)
    settings = config
    if family.text_part:
        settings = config.get(family.text_part) or {}
        if not isinstance(settings, dict):
            raise ModelInvalid(f"config.json: {family.text_part} must be an object, not {settings!r}")
    read = ModelConfig(settings, aliases=family.aliases, defaults=family.defaults)
    blocks = _check_quantization(config, str(kind))
    for setting, allowed in family.only.items():
        if read.get(setting) not in allowed:
            raise ModelUnsupported(
                f"config.json: {read.name(setting)} {read.get(setting)!r} is not supported for {kind}, "
                f"only {allowed[-1]!r}"
            )
    return _read_shape(str(kind), family, read, blocks=blocks)


def _check_quantization(config: dict[str, Any], family: str) -> bool:
    """Tell whether experts come in MXFP4 blocks, the only supported quantized format of Hugging Face folders."""
    quantization = config.get("quantization_config")
    if not quantization:
        return False
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method == "mxfp4" and family == "gpt_oss":
        return True
    raise ModelUnsupported(
        f"config.json: quantization_config with {method!r} is not supported. Use the unquantized weights."
    )


def _read_shape(name: str, family: Family, config: ModelConfig, *, blocks: bool) -> ModelCard:
    hidden = config.count("hidden_size")
    heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", hidden // heads)
    layers = config.layers()
    setting_bias = config.flag("attention_bias")
    always = family.attention_bias == "always"
    follows = family.attention_bias == "setting" and setting_bias
    experts = read_experts(config, layers, blocks=blocks) if family.experts else None
    rope, local_rope = read_ropes(family, config, head_dim)
    scalar = config.get("query_pre_attn_scalar")
    card = ModelCard(
        family=name,
        vocabulary=config.count("vocab_size"),
        hidden=hidden,
        intermediate=config.count("intermediate_size", 4 * hidden if family.learned_positions else None),
        layers=layers,
        heads=heads,
        kv_heads=config.count("num_key_value_heads", heads),
        head_dim=head_dim,
        context_tokens=config.count("max_position_embeddings"),
        norm_epsilon=config.number("rms_norm_eps"),
        rope=rope,
        tied_embeddings=config.flag("tie_word_embeddings"),
        attention_bias=always or follows or family.attention_bias == "inputs",
        mlp_bias=family.mlp_bias == "always" or (family.mlp_bias == "setting" and config.flag("mlp_bias")),
        output_bias=always or follows,
        activation=family.activation or read_activation(config),
        attention_scale=0.0 if scalar is None else _positive(config, "query_pre_attn_scalar") ** -0.5,
        attention_softcap=config.number("attn_logit_softcapping", 0.0),
        logit_softcap=config.number("final_logit_softcapping", 0.0),
        embedding_scale=hidden**0.5 if family.scaled_embedding else 1.0,
        windows=read_windows(family, config, layers),
        local_rope=local_rope,
        experts=experts,
        stored_value_bytes=_stored_value_bytes(config),
    )
    if card.heads % card.kv_heads or card.head_dim % 2:
        raise ModelInvalid(
            f"config.json: {card.heads} heads over {card.kv_heads} key-value heads of size {card.head_dim} "
            "is not grouped-query attention"
        )
    return card


def _positive(config: ModelConfig, setting: str) -> float:
    value = config.number(setting)
    if not value > 0:
        raise ModelInvalid(f"config.json: {config.name(setting)} must be above zero, not {value!r}")
    return value


def _stored_value_bytes(config: ModelConfig) -> int:
    return 2 if (config.get("dtype") or config.get("torch_dtype")) in ("bfloat16", "float16") else 4
