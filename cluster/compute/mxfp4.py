"""MXFP4 as in GPT-OSS's files: blocks of 32 four-bit floats with one power of two."""

import torch
from torch import Tensor

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the codes 0 to 7; the fourth bit is the sign (OCP Microscaling Formats 1.0, E2M1)."""
_EXPONENT_BIAS = 127


def dequantise(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return weights [out, in] in bf16, which holds them exactly.

    `blocks` is uint8 [out, in / 32, 16] with two codes a byte, the lower half first; `scales` is uint8 [out, in /
    32].
    """
    table = torch.tensor((*_VALUES, *(-value for value in _VALUES)), device=blocks.device)
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    exponents = scales.to(torch.int32).sub_(_EXPONENT_BIAS).unsqueeze(-1)
    values = torch.ldexp(table[codes.int()], exponents)
    return values.flatten(-2).to(torch.bfloat16)
