"""GGUF files of tiny random models, written with the format's own package as llama.cpp's converter does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer
from torch import Tensor, nn

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}


def write_gguf(
    path: Path, model: nn.Module, tokenizer: Tokenizer, kind: str, *, split_tensors: int = 0
) -> dict[str, Tensor]:
    """Write a Llama, Mixtral, Qwen2, Qwen3 or Qwen3-MoE with matrices of type `kind`.

    Return the weights that the file then holds, except for experts, which are as exact as the type.
    """
    config: Any = model.config
    architecture = {"mixtral": "llama", "qwen3_moe": "qwen3moe"}.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, architecture, split_max_tensors=split_tensors)
    _write_metadata(writer, config)
    write_byte_level(writer, tokenizer)
    held: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if tensor.dim() == 3:
            _write_experts(writer, name, tensor, kind)
            continue
        matrix = tensor.dim() == 2
        rows = tensor.float().numpy()
        heads = _interleaved_heads(name, config)
        if heads:
            rows = _interleaved(rows, heads)
        quantized, dtype = encode(rows, kind if matrix else "F32")
        writer.add_tensor(_gguf_name(name), quantized, raw_dtype=dtype)
        values = dequantize(quantized, dtype).reshape(rows.shape)
        if heads:
            values = _halves(values, heads)
        held[name] = torch.from_numpy(values.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def _write_experts(writer: GGUFWriter, name: str, tensor: Tensor, kind: str) -> None:
    """Write the experts of a layer as GGUF does: one tensor per matrix kind, gates and ups separate."""
    layer, part = name.split(".")[2], name.split(".")[-1]
    if part == "gate_up_proj":
        halves = zip(("ffn_gate_exps", "ffn_up_exps"), tensor.float().chunk(2, dim=1), strict=True)
    else:
        halves = zip(("ffn_down_exps",), (tensor.float(),), strict=True)
    for stacked, values in halves:
        quantized, dtype = encode(values.contiguous().numpy(), kind)
        writer.add_tensor(f"blk.{layer}.{stacked}.weight", quantized, raw_dtype=dtype)


def encode(rows: np.ndarray[Any, Any], kind: str) -> tuple[np.ndarray[Any, Any], GGMLQuantizationType]:
    """Return rows in a GGUF type. The package cannot write Q4_K, so its blocks get round numbers by hand."""
    dtype = GGMLQuantizationType[kind]
    if kind != "Q4_K":
        return quantize(rows, dtype), dtype
    blocks = rows.reshape(-1, 8, 32)
    scale = np.abs(blocks).max() / 7.5 / 32
    quants = np.clip(np.round(blocks / (scale * 32) + 8), 0, 15).astype(np.uint8)
    packed = np.zeros((len(blocks), 144), np.uint8)
    packed[:, :2] = np.array([scale], np.float16).view(np.uint8)
    packed[:, 2:4] = np.array([scale * 8], np.float16).view(np.uint8)
    # Six-bit scales and minimums of 32 (groups 0-3 here, 4-7 in the upper bits): value = scale * (32 q - 256).
    packed[:, 4:12] = 32 | 2 << 6
    packed[:, 12:16] = 0
    pairs = quants.reshape(-1, 4, 2, 32)
    packed[:, 16:] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    return packed.reshape(rows.shape[0], -1), dtype


def write_byte_level(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    stored = json.loads(tokenizer.to_str())
    vocabulary = stored["model"]["vocab"]
    special = {token["id"]: token["special"] for token in stored["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_types([{None: 1, True: 3, False: 4}[special.get(at)] for at in range(len(vocabulary))])
    writer.add_token_merges([" ".join(merge) for merge in stored["model"]["merges"]])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(0)
    writer.add_chat_template("{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}")


def _write_metadata(writer: GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    if config.model_type in ("mixtral", "qwen3_moe"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_divisors(rope, config.head_dim))


def _interleaved_heads(name: str, config: Any) -> int:
    if config.model_type not in ("llama", "mixtral"):
        return 0
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return int(heads.get(name.split(".")[-2], 0))


def _rope_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """Return the divisors of Llama 3.1's frequencies, as llama.cpp's converter writes them."""
    context, low, high = (
        rope["original_max_position_embeddings"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
    )
    divisors = []
    for frequency in rope["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim):
        length = 2 * np.pi / frequency
        if length < context / high:
            divisors.append(1.0)
        elif length > context / low:
            divisors.append(rope["factor"])
        else:
            smooth = (context / length - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    layer, inner = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_NAMES[inner]}.{kind}"


def _interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _halves(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
