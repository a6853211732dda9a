"""Rotary embeddings as tables: each pair of a head's values is a complex number that a position rotates."""

import math

import torch
from torch import Tensor

from cluster.models.rope import Rope


def rotations(rope: Rope, head_dim: int, positions: int, device: torch.device) -> Tensor:
    """Return complex rotations [positions, 1, head_dim / 2] of the first positions; unrotated values have 1.

    `positions` is also the deployment's context, which chooses between longrope's two sets of factors.
    """
    rotary_dim = rope.rotary_dim or head_dim
    angles = torch.outer(torch.arange(positions).float(), _frequencies(rope, rotary_dim, positions))
    turns = torch.ones(positions, head_dim // 2, dtype=torch.complex64)
    turns[:, : rotary_dim // 2] = torch.polar(torch.full_like(angles, rope.attention_factor), angles)
    return turns.unsqueeze(1).to(device)


def pair_order(rope: Rope, head_dim: int) -> Tensor:
    """Return the order [head_dim] of a head's values that puts rotated pairs side by side.

    Checkpoints pair value i with value i + rotary_dim / 2. Reordering the rows of the query and the key projection
    alike does not change their products. It allows rotating both with one multiplication.
    """
    half = (rope.rotary_dim or head_dim) // 2
    pairs = torch.stack((torch.arange(half), torch.arange(half, 2 * half)), dim=1).flatten()
    return torch.cat((pairs, torch.arange(2 * half, head_dim)))


def rotate(heads: Tensor, turns: Tensor) -> Tensor:
    """Return heads [rows, heads, head_dim] rotated by turns [rows, 1, head_dim / 2]; contiguous.

    The values are paired as `pair_order` says.
    """
    return (heads.float().view(torch.complex64) * turns).view(torch.float32).to(heads.dtype)


def _frequencies(rope: Rope, dim: int, context_tokens: int) -> Tensor:
    """Return the angles per position [dim / 2] in fp32."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    match rope.kind:
        case "linear":
            return 1.0 / rope.theta**exponents / rope.factor
        case "llama3":
            return _llama3(rope, 1.0 / rope.theta**exponents)
        case "yarn":
            return _yarn(rope, 1.0 / rope.theta**exponents, dim)
        case "longrope":
            factors = rope.long_factors if context_tokens > rope.original_context else rope.short_factors
            return 1.0 / (torch.tensor(factors) * rope.theta**exponents)
        case _:
            return 1.0 / rope.theta**exponents


def _llama3(rope: Rope, frequencies: Tensor) -> Tensor:
    """Llama 3.1: stretch wavelengths beyond the original context, keep short ones, blend the others.

    Maps frequencies [dim / 2] to [dim / 2].
    """
    turns = rope.original_context * frequencies / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def _yarn(rope: Rope, frequencies: Tensor, dim: int) -> Tensor:
    """YaRN (arXiv 2309.00071): as "llama3", with the blend linear in the frequency's index.

    Maps frequencies [dim / 2] to [dim / 2].
    """

    def index_of(turns: float) -> float:
        """Return the index whose wavelength fits `turns` times into the original context."""
        return dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    stretched = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies / rope.factor * stretched + frequencies * (1 - stretched)
