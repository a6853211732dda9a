"""A stage's matrices in their computing format: `pack` a weight once, then call it on packed rows."""

from typing import Protocol

import torch
from torch import Tensor

from cluster.compute.float_linear import pack_float, widens_halves
from cluster.compute.int_linear import Int4, Int8, Int8Matmul, Int8Weights, int8_levels
from cluster.compute.quantize import GROUP, int4_groups, int8_channels
from cluster.models.model_card import Precision

_FLOATS: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Kernels tile a matrix's outputs and, on CUDA, its inputs; matrices that do not fill tiles stay unquantized.
_INT4_OUT_MULTIPLE = 16
_CUDA_INT4_IN_MULTIPLE = 128
_CUDA_INT8_MULTIPLE = 8


class Linear(Protocol):
    """Rows [n, in] times a packed weight, plus its bias: [n, out] in the rows' dtype, for any n."""

    in_features: int
    out_features: int
    weight_bytes: int
    """Bytes of the packed weight, its scales and its bias."""

    def __call__(self, rows: Tensor) -> Tensor: ...


def pack(weight: Tensor, bias: Tensor | None, precision: Precision, *, keep: bool = False) -> Linear:
    """Pack weight [out, in] and bias [out]. The matrix computes on the weight's device.

    `keep` leaves this matrix unquantized in an int8 or int4 model. So do shapes that kernels cannot tile: int4
    needs `in` in multiples of 32 and `out` in multiples of 16. int8 is W8A8: one scale per output channel, and one
    per row that is computed in each call. int4 has a scale and a minimum for each 32 inputs.
    """
    dtype = _FLOATS.get(precision)
    if dtype is not None:
        return pack_float(weight, bias, dtype)
    if keep or not _tiles(weight, precision):
        return pack_float(weight, bias, torch.float32 if weight.device.type == "cpu" else torch.bfloat16)
    if precision == "int4":
        return Int4(*int4_groups(weight), bias)
    return _pack_int8(weight, bias)


def pack_int4(quants: Tensor, scales: Tensor, mins: Tensor, bias: Tensor | None = None) -> Linear:
    """Pack a matrix that its file already holds in 4 bits, quant by quant: weight = scale * quant - min.

    `quants` is uint8 [out, in], one quant of 0..15 per byte in the order of the inputs. `scales` and `mins` are
    [out, in / 32]; column i is for inputs 32 i to 32 i + 31. GGUF's Q4_0 has min = 8 * scale, its Q4_K has scale =
    d * sc and min = dmin * m. Scales and 8 * scale - min are rounded to bf16.
    """
    if not _tiles(quants, "int4"):
        groups = quants.float().view(len(quants), -1, GROUP)
        weight = groups * scales.float().unsqueeze(2) - mins.float().unsqueeze(2)
        return pack(weight.view(quants.shape), bias, "int4", keep=True)
    return Int4(quants, scales.float(), mins.float(), bias)


def _pack_int8(weight: Tensor, bias: Tensor | None) -> Linear:
    quants, scales = int8_channels(weight)
    if weight.device.type == "mps":
        return Int8Weights(quants, scales, bias)
    if weight.device.type == "cpu" and widens_halves():
        return Int8(quants, scales, bias, int8_levels())
    return Int8Matmul(quants, scales, bias)


def _tiles(weight: Tensor, precision: Precision) -> bool:
    """Tell whether the device's kernel for this precision takes a matrix of this shape."""
    outs, ins = weight.shape
    on_cuda = weight.device.type == "cuda"
    if precision == "int8":
        return not on_cuda or (outs % _CUDA_INT8_MULTIPLE == 0 and ins % _CUDA_INT8_MULTIPLE == 0)
    multiple = _CUDA_INT4_IN_MULTIPLE if on_cuda else GROUP
    return outs % _INT4_OUT_MULTIPLE == 0 and ins % multiple == 0
