"""Matrices whose weights keep a floating-point format, each laid out for its fastest kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.compute.fused import HalfRows, fuse
from cluster.compute.quantize import chunks

_HALF_PEAK = 2.0**15
# Losses of fp16 below this share of the largest weight are invisible in an fp32 sum.
_INVISIBLE = 2.0**-32


def pack_float(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> "Dense | Reordered | HalfHeld":
    """Pack weight [out, in] and bias [out] for computing in `dtype`, on the weight's device.

    On x86, fp32 weights that fp16 can hold without loss are stored so and widened in registers. Arithmetic and
    results are those of fp32 at half the memory traffic. Weights from bf16 or fp16 files are of this kind.
    """
    if weight.device.type != "cpu":
        return Dense(weight, bias, dtype)
    if widens_halves() and (dtype == torch.float16 or (dtype == torch.float32 and fits_half(weight))):
        return HalfHeld(weight, bias)
    if dtype != torch.float16 and torch._C._has_mkldnn:
        return Reordered(weight, bias, dtype)
    return Dense(weight, bias, dtype)


class Dense:
    """Weights as they are: PyTorch's own kernel for the device.

    Weight [out, in], bias [out]; maps rows [rows, in] to [rows, out].
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight.to(dtype).contiguous()
        self._bias = None if bias is None else bias.to(dtype)
        self.weight_bytes = self._weight.nbytes + bytes_of(self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        return F.linear(rows.to(self._weight.dtype), self._weight, self._bias).to(rows.dtype)


class Reordered:
    """Weights in oneDNN's blocked layout: 1.2 times (fp32) to 1.7 times (bf16) as fast as the plain one.

    Weight [out, in], bias [out]; maps rows [rows, in] to [rows, out].
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self._dtype = dtype
        self._bias = None if bias is None else bias.to(dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous(), 1)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self.weight_bytes = weight.numel() * dtype.itemsize + bytes_of(self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        if not len(rows):
            return rows.new_empty(0, self.out_features)
        out: Tensor = self._product(rows.to(self._dtype), self._weight, self._bias, "none", [], "")
        return out.to(rows.dtype)


class HalfHeld:
    """Weights in fp16 times a power of two; rows, products and sums in fp32 (FBGEMM).

    Weight [out, in], bias [out]; maps rows [rows, in] to [rows, out]. A row's result has the same bits in every
    batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        factor = _half_factor(weight)
        wide = torch.empty(weight.shape)
        for rows in chunks(weight):
            torch.mul(weight[rows].float(), factor, out=wide[rows])
        packed = torch.ops.quantized.linear_prepack_fp16(wide, None)
        bias = None if bias is None else bias.float()
        self._product = fuse(HalfRows, packed=packed, undo=torch.tensor([1 / factor]), bias=bias)
        self.weight_bytes = 2 * weight.numel() + bytes_of(bias)

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.dtype == torch.float32:
            return self._product(rows)
        return self._product(rows.float()).to(rows.dtype)


def widens_halves() -> bool:
    """Tell whether this machine has the kernel that multiplies fp32 rows with fp16 weights: x86 with AVX2."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def fits_half(weight: Tensor) -> bool:
    """Tell whether fp16 times a power of two holds all weights, up to losses that no fp32 sum shows.

    `weight` is [out, in].
    """
    factor = _half_factor(weight)
    for rows in chunks(weight):
        wide = weight[rows].float() * factor
        if not bool((wide.half().float() - wide).abs().amax() <= _HALF_PEAK * _INVISIBLE):
            return False
    return True


def bytes_of(tensor: Tensor | None) -> int:
    """Return the bytes of a tensor of any shape; 0 for None."""
    return 0 if tensor is None else tensor.nbytes


def _half_factor(weight: Tensor) -> float:
    """Return the power of two that brings the largest weight just below 2 ** 15; products with it are exact."""
    peak = max((float(weight[rows].abs().amax()) for rows in chunks(weight)), default=0.0)
    if not 0 < peak < float("inf"):
        return 1.0
    return _HALF_PEAK / 2.0 ** max(-100, int(torch.frexp(torch.tensor(peak)).exponent))
