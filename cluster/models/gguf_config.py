"""A GGUF's metadata as the config.json that a Hugging Face checkpoint of the same model has."""

import math
from dataclasses import dataclass
from typing import Any

from cluster.errors import ModelInvalid, ModelUnsupported
from cluster.models.gguf_file import Gguf, GgufTensor, read_floats

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe")

ROPE_FACTORS = "rope_freqs.weight"
"""A tensor that is not a weight: it holds the divisors of the rotary frequencies."""


def read_config(gguf: Gguf) -> dict[str, Any]:
    """Return the config.json for the metadata. Raise ModelUnsupported or ModelInvalid, naming the key."""
    architecture = gguf.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise ModelUnsupported(f"GGUF architecture {architecture!r} is not supported; supported: {supported}")
    reader = _Metadata(architecture, gguf.metadata)
    shapes = {tensor.name: tensor.shape for tensor in gguf.tensors}
    if "token_embd.weight" not in shapes:
        raise ModelInvalid("the GGUF file lacks the tensor token_embd.weight")
    heads, hidden = reader.count("attention.head_count"), reader.count("embedding_length")
    head_dim = reader.count("attention.key_length", hidden // heads)
    if reader.count("rope.dimension_count", head_dim) != head_dim:
        raise ModelUnsupported(f"{architecture}.rope.dimension_count: only full rotary embeddings are supported")
    if reader.count("attention.value_length", head_dim) != head_dim:
        raise ModelUnsupported(f"{architecture}.attention.value_length: must equal key_length {head_dim}")
    config = {
        "model_type": {"qwen3moe": "qwen3_moe"}.get(architecture, architecture),
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": hidden,
        "num_hidden_layers": reader.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": reader.count("context_length"),
        "rms_norm_eps": reader.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in shapes,
        "hidden_act": "silu",
    }
    if architecture == "llama":  # The biases of the others belong to their family.
        config["attention_bias"] = "blk.0.attn_q.bias" in shapes
    config |= _rope(reader, gguf, head_dim) | _feed_forward(reader, config["model_type"])
    return config


def _feed_forward(reader: "_Metadata", family: str) -> dict[str, Any]:
    experts = reader.count("expert_count", 0)
    if not experts:
        return {"intermediate_size": reader.count("feed_forward_length")}
    if family not in ("llama", "qwen3_moe"):
        raise ModelUnsupported(f"GGUF architecture {family!r} with experts is not supported")
    used = reader.count("expert_used_count")
    if family == "llama":
        return {
            "model_type": "mixtral",
            "intermediate_size": reader.count("feed_forward_length"),
            "num_local_experts": experts,
            "num_experts_per_tok": used,
        }
    return {
        "intermediate_size": reader.count("feed_forward_length"),
        "moe_intermediate_size": reader.count("expert_feed_forward_length"),
        "num_experts": experts,
        "num_experts_per_tok": used,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _rope(reader: "_Metadata", gguf: Gguf, head_dim: int) -> dict[str, Any]:
    theta = reader.number("rope.freq_base", 10000.0)
    factors = next((tensor for tensor in gguf.tensors if tensor.name == ROPE_FACTORS), None)
    if factors is not None:
        return {"rope_theta": theta, "rope_scaling": _llama3_scaling(factors, gguf, theta, head_dim)}
    kind = reader.text("rope.scaling.type", "none")
    if kind == "none":
        return {"rope_theta": theta}
    if kind not in ("linear", "yarn"):
        raise ModelUnsupported(f"{reader.architecture}.rope.scaling.type {kind!r} is not supported")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": reader.number("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = reader.count("rope.scaling.original_context_length")
    return {"rope_theta": theta, "rope_scaling": scaling}


def _llama3_scaling(tensor: GgufTensor, gguf: Gguf, theta: float, head_dim: int) -> dict[str, Any]:
    """Return Llama 3.1's settings from the divisors of its frequencies, which are all that a GGUF stores.

    Raise ModelUnsupported if those settings do not lead to the same divisors.
    """
    divisors = read_floats(gguf, tensor)
    factor = round(max(divisors, default=1.0), 4)
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = _llama3_divisors(theta, head_dim, factor)
    if len(divisors) != len(expected) or any(
        not math.isclose(a, b, rel_tol=1e-3) for a, b in zip(divisors, expected, strict=True)
    ):
        raise ModelUnsupported(f"{tensor.file}: {tensor.name} is not a scaling as in Llama 3.1")
    return scaling


def _llama3_divisors(theta: float, head_dim: int, factor: float) -> list[float]:
    divisors = []
    for index in range(0, head_dim, 2):
        turns = 8192 / (2 * math.pi * theta ** (index / head_dim))
        blend = min(max((turns - 1.0) / (4.0 - 1.0), 0.0), 1.0)
        divisors.append(1 / ((1 - blend) / factor + blend))
    return divisors


@dataclass(frozen=True, slots=True)
class _Metadata:
    """Typed access to an architecture's own keys."""

    architecture: str
    pairs: dict[str, Any]

    def count(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or value < (1 if default is None else default > 0)
        ):
            raise ModelInvalid(
                f"GGUF metadata: {self.architecture}.{name} must be a positive integer, not {value!r}"
            )
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if not isinstance(value, int | float) or not value > 0:
            raise ModelInvalid(
                f"GGUF metadata: {self.architecture}.{name} must be a positive number, not {value!r}"
            )
        return float(value)

    def text(self, name: str, default: str) -> str:
        return str(self._get(name, default))

    def _get(self, name: str, default: object) -> Any:
        return self.pairs.get(f"{self.architecture}.{name}", default)
