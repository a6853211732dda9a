"""A model's shape and cost in bytes, from its config.json; refuses by name what the decoder cannot run."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from cluster.errors import ModelInvalid, ModelUnsupported

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BYTES_PER_VALUE: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2}

FAMILIES = ("llama",)
_ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: `theta` and, for stretched contexts, how its frequencies were scaled."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class ModelCard:
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

    def layer_values(self) -> int:
        """Weights of one layer, counted in values."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys)
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    def embedding_values(self) -> int:
        return self.vocabulary * self.hidden

    def layer_bytes(self, precision: Precision) -> int:
        return self.layer_values() * BYTES_PER_VALUE[precision]

    def embedding_bytes(self, precision: Precision) -> int:
        return self.embedding_values() * BYTES_PER_VALUE[precision]

    def total_bytes(self, precision: Precision) -> int:
        """All weights, as one machine would hold them."""
        embeddings = 1 if self.tied_embeddings else 2
        return self.layers * self.layer_bytes(precision) + embeddings * self.embedding_bytes(precision)

    def kv_bytes_per_token(self, precision: Precision) -> int:
        """Keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * BYTES_PER_VALUE[precision]


def read_card(config: dict[str, Any]) -> ModelCard:
    """The card of a config.json. Raises ModelUnsupported and ModelInvalid, naming the setting."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelUnsupported(f"model family {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelUnsupported(f"config.json: hidden_act {config['hidden_act']!r} is not supported, only 'silu'")
    if config.get("partial_rotary_factor", 1) != 1:
        raise ModelUnsupported("config.json: partial_rotary_factor is not supported, only full rotary embeddings")
    if config.get("quantization_config"):
        raise ModelUnsupported("config.json: quantization_config is not supported; take the unquantized weights")
    hidden = _count(config, "hidden_size")
    heads = _count(config, "num_attention_heads")
    card = ModelCard(
        family=family,
        vocabulary=_count(config, "vocab_size"),
        hidden=hidden,
        intermediate=_count(config, "intermediate_size"),
        layers=_count(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", heads),
        head_dim=_count(config, "head_dim", hidden // heads),
        context_tokens=_count(config, "max_position_embeddings"),
        norm_epsilon=_number(config, "rms_norm_eps", 1e-6),
        rope=_read_rope(config),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
    )
    if card.heads % card.kv_heads or card.head_dim % 2:
        raise ModelInvalid(
            f"config.json: {card.heads} heads over {card.kv_heads} key-value heads of size {card.head_dim} "
            "is no grouped-query attention"
        )
    return card


def _count(config: dict[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelInvalid(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def _number(config: dict[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ModelInvalid(f"config.json: {name} must be a number, not {value!r}")
    return float(value)


def _read_rope(config: dict[str, Any]) -> Rope:
    # transformers 5 writes everything into rope_parameters; older files have rope_theta beside rope_scaling.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ModelInvalid(f"config.json: rope settings must be an object, not {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROPE_KINDS:
        raise ModelUnsupported(
            f"config.json: rope type {kind!r} is not supported; supported: {', '.join(_ROPE_KINDS)}"
        )
    try:
        rope = Rope(
            theta=float(scaling.get("rope_theta", config.get("rope_theta", 10000.0))),
            kind=kind,
            factor=float(scaling.get("factor", 1.0)),
            low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
            high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
            original_context=int(scaling.get("original_max_position_embeddings", 0)),
        )
    except (TypeError, ValueError) as error:
        raise ModelInvalid(f"config.json: rope settings cannot be read: {error}") from None
    if kind == "llama3" and rope.original_context < 1:
        raise ModelInvalid("config.json: rope type 'llama3' needs original_max_position_embeddings")
    return rope
