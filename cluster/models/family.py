"""The families of the fast path as data: their differences from Llama, and the names in their files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cluster.models.rope import PLAIN_ROPES, RopeKind

Norm = Literal["rms", "rms_plus_one", "layer"]
"""RMSNorm; RMSNorm whose file holds the weight less one (Gemma); LayerNorm with bias."""

Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_swiglu"]

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""The activations by their names in config.json."""


@dataclass(frozen=True, slots=True)
class Names:
    """Tensor names behind the checkpoint's root and a layer's prefix; ".weight" and ".bias" follow them.

    Several names are stacked into one matrix; a checkpoint with fused tensors has only one name. `{}` in an
    expert's name is its number. `experts_packed` means one tensor for all experts of a layer.
    """

    roots: tuple[str, ...] = ("model.", "")
    embedding: str = "embed_tokens.weight"
    positions: str = "wpe.weight"
    final_norm: str = "norm"
    head: str = "lm_head.weight"
    layer: str = "layers.{}."
    input_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    output: str = "self_attn.o_proj"
    attended_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_done_norm: str = "post_feedforward_layernorm"
    router: str = "mlp.gate"
    expert_gate_up: tuple[str, ...] = ("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj")
    expert_down: str = "mlp.experts.{}.down_proj"
    experts_packed: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """A decoder as the difference from Llama's.

    `sandwich` puts norms behind attention and MLP as well. `windows` says which layers attend only to the last
    tokens: "every" one, or "typed" by layer_types, by default every layer but each `full_every`-th.
    Biases follow the `setting` or not; "inputs" means queries, keys and values only. `aliases` are the family's
    names for usual settings. `defaults` are the values of missing settings. `only` are the allowed values of a
    setting.
    """

    names: Names = Names()
    norm: Norm = "rms"
    sandwich: bool = False
    qk_norm: bool = False
    sinks: bool = False
    gated: bool = True
    attention_bias: Literal["never", "setting", "inputs", "always"] = "never"
    mlp_bias: Literal["never", "setting", "always"] = "never"
    transposed: bool = False
    learned_positions: bool = False
    scaled_embedding: bool = False
    ropes: tuple[RopeKind, ...] = PLAIN_ROPES
    local_rope: bool = False
    windows: Literal["never", "every", "typed"] = "never"
    full_every: int = 0
    activation: Activation | None = None
    experts: bool = False
    text_part: str = ""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


_WHOLE_HEADS = {"partial_rotary_factor": (None, 1, 1.0)}
_LOCAL_EXPERTS = {"num_experts": ("num_local_experts", "num_experts")}
_CAUSAL = {"use_bidirectional_attention": (None, False)}

_LLAMA = Family(
    attention_bias="setting",
    mlp_bias="setting",
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 2048},
    only=_WHOLE_HEADS,
)

_MISTRAL = Family(
    windows="every",
    defaults={
        **_LLAMA.defaults,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 131_072,
    },
    only=_WHOLE_HEADS,
)

_QWEN2 = Family(
    attention_bias="inputs",
    windows="typed",
    defaults={**_LLAMA.defaults, "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
    | {"max_position_embeddings": 32_768},
    only=_WHOLE_HEADS,
)

_QWEN3 = replace(_QWEN2, attention_bias="setting", qk_norm=True, defaults={**_QWEN2.defaults, "head_dim": 128})

_QWEN3_MOE = replace(
    _QWEN2,
    attention_bias="setting",
    qk_norm=True,
    windows="every",
    experts=True,
    aliases={"num_experts": ("num_experts", "num_local_experts")},
    defaults={**_QWEN2.defaults, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": False}
    | {"moe_intermediate_size": 768, "num_key_value_heads": 4},
)

_MIXTRAL = Family(
    names=Names(
        router="block_sparse_moe.gate",
        expert_gate_up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
        expert_down="block_sparse_moe.experts.{}.w2",
    ),
    windows="every",
    experts=True,
    aliases=_LOCAL_EXPERTS,
    defaults={**_LLAMA.defaults, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8}
    | {"num_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 131_072},
    only=_WHOLE_HEADS,
)

_GEMMA2 = Family(
    names=Names(mlp_norm="pre_feedforward_layernorm"),
    norm="rms_plus_one",
    sandwich=True,
    attention_bias="setting",
    scaled_embedding=True,
    windows="typed",
    full_every=2,
    aliases={"hidden_act": ("hidden_activation",)},
    defaults={
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
    only=_WHOLE_HEADS | _CAUSAL,
)

_GEMMA3 = replace(
    _GEMMA2,
    qk_norm=True,
    local_rope=True,
    full_every=6,
    defaults={
        **_GEMMA2.defaults,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0,
        "max_position_embeddings": 131_072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    only={**_GEMMA2.only, "attn_logit_softcapping": (None,)},
)

_PHI3 = Family(
    names=Names(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    ropes=("default", "longrope"),
    windows="every",
    defaults={**_LLAMA.defaults, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
)

_GPT_OSS = Family(
    names=Names(
        router="mlp.router",
        expert_gate_up=("mlp.experts.gate_up_proj",),
        expert_down="mlp.experts.down_proj",
        experts_packed=True,
    ),
    attention_bias="setting",
    mlp_bias="always",
    sinks=True,
    windows="typed",
    full_every=2,
    activation="clamped_swiglu",
    experts=True,
    aliases=_LOCAL_EXPERTS,
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "max_position_embeddings": 131_072,
        "attention_bias": True,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    only=_WHOLE_HEADS,
)

_GPT2 = Family(
    names=Names(
        roots=("transformer.", ""),
        embedding="wte.weight",
        final_norm="ln_f",
        layer="h.{}.",
        input_norm="ln_1",
        qkv=("attn.c_attn",),
        output="attn.c_proj",
        mlp_norm="ln_2",
        gate_up=("mlp.c_fc",),
        down="mlp.c_proj",
    ),
    norm="layer",
    gated=False,
    attention_bias="always",
    mlp_bias="always",
    transposed=True,
    learned_positions=True,
    ropes=("default",),
    aliases={
        "hidden_size": ("n_embd",),
        "num_hidden_layers": ("n_layer",),
        "num_attention_heads": ("n_head",),
        "max_position_embeddings": ("n_positions",),
        "intermediate_size": ("n_inner",),
        "hidden_act": ("activation_function",),
        "rms_norm_eps": ("layer_norm_epsilon",),
    },
    defaults={"hidden_act": "gelu_new", "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": True},
    only={
        "scale_attn_weights": (None, True),
        "scale_attn_by_inverse_layer_idx": (None, False),
        "add_cross_attention": (None, False),
    },
)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gemma3": replace(
        _GEMMA3,
        names=replace(_GEMMA3.names, roots=("language_model.model.", "model.language_model.")),
        text_part="text_config",
    ),
    "phi3": _PHI3,
    "gpt_oss": _GPT_OSS,
    "gpt2": _GPT2,
}
"""Families by config.json's model_type."""
