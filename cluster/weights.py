"""One stage's tensors and no others: read by range, checked against the manifest, at the pinned precision."""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from cluster.checkpoint import EMBEDDING, FINAL_NORM, OUTPUT_HEAD, check_tensors
from cluster.decoder import LayerWeights, StageWeights
from cluster.errors import WeightsMismatch
from cluster.manifest import Manifest, TensorEntry
from cluster.model_card import ModelCard, Precision
from cluster.plan import StageSpec

DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

ReadTensor = Callable[[TensorEntry], bytearray]
"""A tensor's raw bytes, from a checkpoint folder or a fetched copy."""


def load_stage(
    card: ModelCard, manifest: Manifest, spec: StageSpec, read: ReadTensor, device: torch.device
) -> StageWeights:
    """Load and fuse a stage's weights; at most one layer is in memory twice while that lasts.

    Raises WeightsMismatch when bytes are not the pinned ones, ModelInvalid when shapes contradict config.json.
    """
    check_tensors(card, manifest)

    def load(name: str) -> Tensor:
        return _load(name, manifest.tensors[name], read, DTYPES[spec.precision], device)

    layers = [
        _load_layer(card, f"model.layers.{layer}.", load) for layer in range(spec.first_layer, spec.end_layer)
    ]
    tied_last = spec.is_last and card.tied_embeddings
    embedding = load(EMBEDDING) if spec.is_first or tied_last else None
    separate = spec.is_last and not card.tied_embeddings
    return StageWeights(
        layers=layers,
        embedding=embedding if spec.is_first else None,
        final_norm=load(FINAL_NORM) if spec.is_last else None,
        head=load(OUTPUT_HEAD) if separate else embedding if tied_last else None,
    )


def _load_layer(card: ModelCard, prefix: str, load: Callable[[str], Tensor]) -> LayerWeights:
    def fused(kind: str, *parts: str) -> Tensor:
        return torch.cat([load(f"{prefix}{part}.{kind}") for part in parts])

    attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    return LayerWeights(
        input_norm=load(f"{prefix}input_layernorm.weight"),
        qkv=fused("weight", *attention),
        qkv_bias=fused("bias", *attention) if card.attention_bias else None,
        output=load(f"{prefix}self_attn.o_proj.weight"),
        output_bias=load(f"{prefix}self_attn.o_proj.bias") if card.attention_bias else None,
        post_norm=load(f"{prefix}post_attention_layernorm.weight"),
        gate_up=fused("weight", *gate_up),
        gate_up_bias=fused("bias", *gate_up) if card.mlp_bias else None,
        down=load(f"{prefix}mlp.down_proj.weight"),
        down_bias=load(f"{prefix}mlp.down_proj.bias") if card.mlp_bias else None,
    )


def _load(name: str, entry: TensorEntry, read: ReadTensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    raw = read(entry)
    found = hashlib.sha256(raw).hexdigest()
    if found != entry.sha256:
        raise WeightsMismatch(name, entry.sha256, found)
    tensor = torch.frombuffer(raw, dtype=_STORED[entry.dtype]).view(entry.shape)
    return tensor.to(device=device, dtype=dtype)
