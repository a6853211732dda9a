"""Experts of transformers' mixture layers, called through its experts interface, with our packed matrices."""

from typing import Any

import torch
from torch import Tensor, nn

from cluster.compute.linear import Linear, pack
from cluster.models.model_card import Precision

EXPERTS = "millrace"
"""The name under which `run_experts` is registered."""


def run_experts(module: Any, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return rows [n, hidden] after the experts `chosen` [n, k], each times its weight [n, k], summed.

    Each expert computes only the rows that are routed to it.
    """
    summed = torch.zeros_like(rows)
    for expert in torch.unique(chosen).tolist():
        if expert >= module.num_experts:  # transformers' mark for "none".
            continue
        at, rank = torch.where(chosen == expert)
        inner = _times(module, "gate_up_proj" if module.has_gate else "up_proj", expert, rows[at])
        inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        answer = _times(module, "down_proj", expert, inner)
        if module.has_post_expert_norm:
            answer = module.post_expert_norm(answer)
        summed.index_add_(0, at, (answer * weights[at, rank, None]).to(summed.dtype))
    return summed


def _times(module: Any, name: str, expert: int, rows: Tensor) -> Tensor:
    packed: dict[str, list[Linear]] | None = getattr(module, "packed", None)
    if packed:
        return packed[name][expert](rows)
    weight, bias = _of_expert(module, name, expert)
    return nn.functional.linear(rows, weight, bias)


def _of_expert(module: Any, name: str, expert: int) -> tuple[Tensor, Tensor | None]:
    """Return one expert's matrix [out, in] and bias [out]."""
    weight: Tensor = getattr(module, name)[expert]
    bias: Tensor | None = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    return (weight.T if module.is_transposed else weight), bias


def is_stacked(module: nn.Module) -> bool:
    """Tell whether this module holds all experts of a layer as transformers stacks them."""
    return hasattr(module, "is_transposed") and isinstance(getattr(module, "down_proj", None), nn.Parameter)


def pack_experts(module: Any, precision: Precision) -> None:
    """Replace a layer's stacked experts by packed ones."""
    packed: dict[str, list[Linear]] = {}
    for name in ("gate_up_proj" if module.has_gate else "up_proj", "down_proj"):
        parts = (_of_expert(module, name, expert) for expert in range(module.num_experts))
        packed[name] = [pack(weight.contiguous(), bias, precision) for weight, bias in parts]
        setattr(module, name, None)
        if module.has_bias:
            setattr(module, f"{name}_bias", None)
    module.packed = packed
