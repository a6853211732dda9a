"""Rounding of weights to 8 and 4 bits, a few rows at a time, so that their wide copies stay in the cache."""

from collections.abc import Iterator

import torch
from torch import Tensor

GROUP = 32
"""Input values that share one scale and one minimum in int4."""

_CHUNK_VALUES = 2**18


def int8_channels(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return quants int8 [out, in] and scales fp32 [out].

    A weight is about quant * scale of its output channel.
    """
    quants = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    for rows in chunks(weight):
        wide = weight[rows].float()
        # A channel of zeros must not divide by zero; its quants are zeros whatever the scale.
        scales[rows] = wide.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny).div_(127)
        quants[rows] = (wide / scales[rows, None]).round_().clamp_(-127, 127)
    return quants, scales


def int4_groups(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return quants uint8 [out, in] in 0..15, scales and mins fp32 [out, in / 32].

    A weight is about scale * quant - min. Scales, and 8 * scale - min, are values of bf16, as the kernels store
    them, so that quants fit what will be computed. Narrower ranges with a smaller squared error gained nothing in
    perplexity.
    """
    groups = weight.shape[1] // GROUP
    quants = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(len(weight), groups, dtype=torch.float32, device=weight.device)
    mins = torch.empty_like(scales)
    for rows in chunks(weight):
        wide = weight[rows].float().view(-1, groups, GROUP)
        low, high = wide.amin(2, keepdim=True), wide.amax(2, keepdim=True)
        scale = ((high - low) / 15).clamp_min_(torch.finfo(torch.float32).tiny).bfloat16().float()
        least = 8 * scale - (low + 8 * scale).bfloat16().float()
        quants[rows] = ((wide + least) / scale).round_().clamp_(0, 15).view(-1, weight.shape[1]).to(torch.uint8)
        scales[rows], mins[rows] = scale.squeeze(2), least.squeeze(2)
    return quants, scales, mins


def chunks(weight: Tensor) -> Iterator[slice]:
    """Yield slices that cover all rows of a weight [out, in], each of about a quarter million values."""
    step = max(1, _CHUNK_VALUES // weight.shape[1])
    for first in range(0, len(weight), step):
        yield slice(first, min(first + step, len(weight)))
