"""Cards of models that run on the compatibility path, and the tensors that a stage needs. Needs no torch."""

import re
from collections.abc import Collection
from typing import Any

from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.gguf_file import BLOCK_SIZES
from cluster.models.layer_cost import KvShape, LayerCost
from cluster.models.manifest import Manifest
from cluster.models.model_card import ModelCard
from cluster.models.model_config import ModelConfig
from cluster.models.rope import Rope
from cluster.models.stage_spec import StageSpec

_VERIFIED_FAMILIES = (
    "apertus arcee aria_text axk1 cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 dots1 "
    "ernie4_5 ernie4_5_moe exaone4 exaone_moe flex_olmo gemma glm glm4 glm4_moe glm4_moe_lite gpt_bigcode "
    "gpt_neox granite granite_swa granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense "
    "hy_v3 hyperclovax internlm3 iquestcoder jais2 mellum minicpm3 minimax_m2 ministral ministral3 "
    "modernbert-decoder nanochat nemotron olmo olmo2 olmo3 olmoe opt persimmon phi qwen2_moe seed_oss "
    "smollm3 solar_open stablelm starcoder2 vaultgemma youtu"
)
FAMILIES: tuple[str, ...] = tuple(_VERIFIED_FAMILIES.split())
"""Families that agree with transformers 5.23 on tiny random checkpoints, at one, two and three stages."""

_SAME_AS = {"kimi_k2": "deepseek_v3"}
"""Families that are another one's code under their own name."""

_ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx"),
    "num_experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "n_shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "first_k_dense_replace": ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"),
    "moe_intermediate_size": ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size"),
}
_KEEPS_STATE = re.compile(
    r"mamba|rwkv|ssm|lru_width|linear_(num|key|value|conv)|conv_(kernel|L_cache)|xlstm|time_step"
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|layer)\.(\d+)\.")
_EMBEDDING = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in|tok_embeddings|embedding)\.weight\Z"
)
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer|output)\.(?:weight|bias)\Z")
BLOCK_SCALE = "_scale_inv"
"""The suffix of FP8 checkpoints for the scales of a weight's blocks."""
_PLAIN = frozenset(("gate", "router", "kv_b_proj", "shared_expert_gate"))
_NOT_FOR_THE_CLASS = ("auto_map", "architectures", "quantization_config", "transformers_version", "model_type")


def compat_card(config: dict[str, Any]) -> ModelCard:
    """Return the card of a family that transformers' own layers run.

    Layer sizes are estimated from the usual settings. Raise ModelUnsupported or ModelInvalid.
    """
    kind = str(config.get("model_type"))
    _refuse_state(kind, config)
    if _SAME_AS.get(kind, kind) not in FAMILIES:
        raise ModelUnsupported(f"model family {kind!r} is not supported")
    _check_quantization(config)
    read = ModelConfig(config, aliases=_ALIASES)
    hidden, heads = read.count("hidden_size"), read.count("num_attention_heads")
    layers = read.layers()
    head_dim = read.count("head_dim", hidden // heads)
    # GPT-BigCode's one head of keys and values has its own name.
    kv_heads = 1 if config.get("multi_query") else read.count("num_key_value_heads", heads)
    shape = KvShape(kv_heads, head_dim, head_dim)
    if read.get("kv_lora_rank"):
        shape = KvShape(1, read.count("kv_lora_rank") + read.count("qk_rope_head_dim"), 0)
    stored = config.get("dtype") or config.get("torch_dtype")
    return ModelCard(
        family=kind,
        path="compat",
        vocabulary=read.count("vocab_size"),
        hidden=hidden,
        intermediate=read.count("intermediate_size", 4 * hidden),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context_tokens=read.count("max_position_embeddings", 2048),
        norm_epsilon=0.0,
        rope=Rope(theta=0.0),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=False,
        mlp_bias=False,
        stored_value_bytes=2 if stored in ("bfloat16", "float16") else 4,
        kv_shapes=(shape,) * layers,
        layer_costs=tuple(_layer_cost(read, layer, head_dim, kv_heads) for layer in range(layers)),
    )


def config_settings(config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the family by transformers' name, and the settings that its config class takes."""
    kind = str(config.get("model_type"))
    return _SAME_AS.get(kind, kind), {
        name: value for name, value in config.items() if name not in _NOT_FOR_THE_CLASS
    }


def layer_of(tensor: str) -> int | None:
    """Return the number of the layer that a tensor belongs to; None for embeddings, final norm and head."""
    match = _LAYER.search(tensor)
    return int(match[1]) if match else None


def is_plain(projection: str) -> bool:
    """Tell whether a projection stays unquantized: routers decide, and latents are expanded with these weights."""
    return projection in _PLAIN


def stage_names(card: ModelCard, spec: StageSpec, names: Collection[str]) -> list[str]:
    """Return those of the checkpoint's tensors `names` that a stage needs.

    Every stage takes the small tensors that belong to no layer (final norm, learned positions). Then a model's own
    code can run from its first line on each of them.
    """
    has_head = any(_HEAD.search(name) for name in names)
    needed = []
    for name in names:
        layer = layer_of(name)
        if layer is not None:
            is_needed = spec.first_layer <= layer < spec.end_layer
        elif _HEAD.search(name):
            is_needed = spec.is_last
        elif _EMBEDDING.search(name):
            is_needed = spec.is_first or (spec.is_last and (card.tied_embeddings or not has_head))
        else:
            is_needed = True
        if is_needed:
            needed.append(name)
    return needed


def check_names(card: ModelCard, manifest: Manifest) -> None:
    """Raise ModelInvalid if the checkpoint lacks a layer or its embedding, or has tensors of unsupported types.

    Loading checks the other shapes.
    """
    held = {layer_of(name) for name in manifest.tensors}
    missing = [layer for layer in range(card.layers) if layer not in held]
    if missing:
        raise ModelInvalid(
            f"{manifest.name} lacks the tensors of layer {missing[0]}, which its config.json requires"
        )
    for name, entry in manifest.tensors.items():
        is_scaled = entry.dtype == "F8_E4M3" and name + BLOCK_SCALE in manifest.tensors
        if entry.dtype not in BLOCK_SIZES and not is_scaled:
            why = f"without {name}{BLOCK_SCALE}" if entry.dtype == "F8_E4M3" else "which is not supported"
            raise ModelInvalid(f"{name} has dtype {entry.dtype}, {why}")
    embedding = next((t for name, t in manifest.tensors.items() if _EMBEDDING.search(name)), None)
    if embedding is None:
        raise ModelInvalid(f"{manifest.name} has no known embedding tensor")
    if tuple(embedding.shape) != (card.vocabulary, card.hidden):
        raise ModelInvalid(
            f"the embedding of {manifest.name} has shape {list(embedding.shape)}, config.json says "
            f"{[card.vocabulary, card.hidden]}"
        )


def _refuse_state(kind: str, config: dict[str, Any]) -> None:
    kinds = config.get("layer_types") or config.get("layers_block_type") or ()
    stateful = [name for name in kinds if name not in ("full_attention", "sliding_attention", "attention")]
    named = [name for name in (kind, *config) if _KEEPS_STATE.search(name) and config.get(name, True)]
    if stateful:
        raise ModelUnsupported(
            f"model family {kind!r} is not supported: layers of type {stateful[0]!r} need more than a KV cache"
        )
    if named:
        raise ModelUnsupported(
            f"model family {kind!r} is not supported: {named[0]!r} means state outside the KV cache"
        )


def _check_quantization(config: dict[str, Any]) -> None:
    quantization = config.get("quantization_config")
    if not quantization:
        return
    about = quantization if isinstance(quantization, dict) else {"quant_method": quantization}
    method = about.get("quant_method")
    if method != "fp8" or about.get("weight_block_size") != [128, 128]:
        raise ModelUnsupported(
            f"config.json: quantization_config with {method!r} is not supported. Use unquantized weights, or FP8 "
            "in blocks of 128 by 128."
        )


def _layer_cost(read: ModelConfig, layer: int, head_dim: int, kv_heads: int) -> LayerCost:
    hidden = read.count("hidden_size")
    attention, rows, plain = _attention_values(read, hidden, head_dim, kv_heads)
    width = read.count("intermediate_size", 4 * hidden)
    experts = _count_or_zero(read, "num_experts")
    if experts and layer >= _count_or_zero(read, "first_k_dense_replace"):
        width = read.count("moe_intermediate_size") * (experts + _count_or_zero(read, "n_shared_experts"))
        width += _count_or_zero(read, "shared_expert_intermediate_size")
        plain += experts * hidden
    return LayerCost(attention + 3 * hidden * width, rows + 2 * width + hidden, plain + 4 * hidden)


def _attention_values(read: ModelConfig, hidden: int, head_dim: int, kv_heads: int) -> tuple[int, int, int]:
    """Return the values of an attention's packed matrices, their rows, and the values that stay plain."""
    heads = read.count("num_attention_heads")
    if not read.get("kv_lora_rank"):
        rows = head_dim * (heads + 2 * kv_heads)
        return hidden * (rows + heads * head_dim), rows + hidden, 0
    rank, rope = read.count("kv_lora_rank"), read.count("qk_rope_head_dim")
    nope, value = read.count("qk_nope_head_dim"), read.count("v_head_dim")
    query_rank, queries = _count_or_zero(read, "q_lora_rank"), heads * (nope + rope)
    query = query_rank * (hidden + queries) if query_rank else hidden * queries
    matrices = query + hidden * (rank + rope) + heads * value * hidden
    return matrices, query_rank + queries + rank + rope + hidden, rank * heads * (nope + value)


def _count_or_zero(read: ModelConfig, setting: str) -> int:
    return read.count(setting) if read.get(setting) else 0
