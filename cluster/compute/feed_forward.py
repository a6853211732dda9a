"""The part of a layer that treats each row alone: a gated or plain MLP, or a mixture of such experts."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute.linear import Linear
from cluster.compute.norms import Apply
from cluster.models.family import Activation


def feed_forward(gate_up: Linear, down: Linear, activate: Apply) -> Apply:
    """Return an MLP: rows [rows, hidden] to rows of the same shape."""

    def apply(rows: Tensor) -> Tensor:
        return down(activate(gate_up(rows)))

    return apply


def activation(kind: Activation, *, gated: bool, alpha: float = 1.0, limit: float = 0.0) -> Apply:
    """Return the function between the two matrices.

    If gated, it maps [rows, 2 * width], gates before ups, to [rows, width]; otherwise it keeps the shape.
    "clamped_swiglu" is GPT-OSS's: up + 1, a sigmoid sharpened by the factor `alpha`, both sides cut at `limit`.
    """
    if kind == "clamped_swiglu":

        def clamped(both: Tensor) -> Tensor:
            gates, ups = both.chunk(2, dim=-1)
            gates = gates.clamp(max=limit)
            return torch.sigmoid(gates * alpha).mul_(gates).mul_(ups.clamp(-limit, limit).add_(1.0))

        return clamped

    bend = _bend(kind)
    if not gated:
        return bend

    def apply(both: Tensor) -> Tensor:
        width = both.shape[-1] // 2
        return bend(both[:, :width]).mul_(both[:, width:])

    return apply


def _bend(kind: Activation) -> Callable[[Tensor], Tensor]:
    if kind == "silu":
        return F.silu
    approximate = "tanh" if kind == "gelu_tanh" else "none"
    return lambda rows: F.gelu(rows, approximate=approximate)


def mixture(
    router: Tensor, router_bias: Tensor | None, experts: Sequence[Apply], per_token: int, *, normalized: bool
) -> Apply:
    """Return a mixture that sends each row through the router's `per_token` best experts.

    `router` is fp32 [experts, hidden], `router_bias` is [experts]. Weights are the router's softmax; `normalized`
    ones add up to 1. Each expert computes only the rows that visit it. A row's results are added in the experts'
    order, so that other rows do not change its bits.
    """

    def apply(rows: Tensor) -> Tensor:
        chances = F.linear(rows.float(), router, router_bias).softmax(dim=-1)
        weights, chosen = chances.topk(per_token, dim=-1)
        if normalized:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(rows, dtype=torch.float32)
        if len(rows) == 1:
            for expert, weight in sorted(zip(chosen[0].tolist(), weights[0].tolist(), strict=True)):
                out.add_(experts[expert](rows), alpha=weight)
            return out.to(rows.dtype)
        order = chosen.flatten().argsort(stable=True)
        visitors, shares = order // per_token, weights.flatten()[order].unsqueeze(-1)
        begin = 0
        for expert, count in enumerate(chosen.flatten().bincount(minlength=len(experts)).tolist()):
            if count:
                part = slice(begin, begin + count)
                done = experts[expert](rows[visitors[part]]).float()
                out.index_add_(0, visitors[part], done * shares[part])
                begin += count
        return out.to(rows.dtype)

    return apply
