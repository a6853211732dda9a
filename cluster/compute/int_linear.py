"""Matrices with weights of 8 and 4 bits, a class per kernel. They map rows [rows, in] to [rows, out]."""

import functools
import math
import warnings

import torch
from torch import Tensor

from cluster.compute.float_linear import bytes_of
from cluster.compute.fused import Int8Rows, fuse
from cluster.compute.quantize import GROUP

_CUDA_ROWS_MIN = 32


class Int8:
    """8-bit weights and rows on x86 (FBGEMM): one scale per output channel and per row, sums exact in 32 bits.

    Quants are int8 [out, in], scales fp32 [out], bias [out]; rows [rows, in] become [rows, out]. A row's result
    has the same bits in every batch.
    """

    def __init__(self, quants: Tensor, scales: Tensor, bias: Tensor | None, levels: int = 127) -> None:
        self.out_features, self.in_features = quants.shape
        packed = _prepack(quants, scales)
        bias = None if bias is None else bias.float()
        self._product = fuse(Int8Rows, packed=packed, step=1 / levels, zero=levels + 1, bias=bias)
        # FBGEMM keeps a scale (4 bytes), a zero point and a sum of weights per channel.
        self.weight_bytes = quants.numel() + 12 * self.out_features + bytes_of(bias)

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.dtype == torch.float32:
            return self._product(rows)
        return self._product(rows.float()).to(rows.dtype)


class Int8Matmul:
    """The same arithmetic with PyTorch's own integer product: CUDA, and CPUs without FBGEMM.

    The kernel on CUDA needs more than 16 rows, so a few rows are padded, and both features must be multiples of 8.
    Shapes are those of `Int8`.
    """

    def __init__(self, quants: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = quants.shape
        self._quants = quants.t()
        self._scales = scales
        self._bias = None if bias is None else bias.float()
        self._rows_min = _CUDA_ROWS_MIN if quants.device.type == "cuda" else 0
        self.weight_bytes = quants.nbytes + scales.nbytes + bytes_of(self._bias)

    def __call__(self, rows: Tensor) -> Tensor:
        # A GPU starts each operation slower than it computes it, so these are as few as possible.
        count = len(rows)
        peaks = torch.linalg.vector_norm(rows, math.inf, dim=1, keepdim=True, dtype=torch.float32)
        steps = peaks.clamp_min_(torch.finfo(torch.float32).tiny).div_(127)
        # Rows behind these may hold anything: their products are not used.
        quants = rows.new_empty(max(count, self._rows_min), self.in_features, dtype=torch.int8)
        quants[:count] = rows.div(steps).round_()
        out = (torch._int_mm(quants, self._quants)[:count] * self._scales).mul_(steps)
        return (out if self._bias is None else out.add_(self._bias)).to(rows.dtype)


class Int8Weights:
    """8-bit weights, rows in half precision, for Metal, which has no integer product. Not tested there.

    Shapes are those of `Int8`.
    """

    def __init__(self, quants: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = quants.shape
        self._quants, self._scales, self._bias = quants, scales.bfloat16(), bias
        self.weight_bytes = quants.nbytes + self._scales.nbytes + bytes_of(bias)

    def __call__(self, rows: Tensor) -> Tensor:
        out = torch._weight_int8pack_mm(rows.bfloat16(), self._quants, self._scales)
        return (out if self._bias is None else out + self._bias).to(rows.dtype)


class Int4:
    """4-bit weights in groups of 32, rows in bf16 (with fp32 rows the kernel takes a reference path).

    Maps rows [rows, in] to [rows, out]. On CUDA its time grows with the rows: it saves memory, and time only for a
    few rows. Not tested on MPS.
    """

    def __init__(self, quants: Tensor, scales: Tensor, mins: Tensor, bias: Tensor | None) -> None:
        """Pack the matrix. `quants` is uint8 [out, in] in 0..15; `scales` and `mins` are [out, in / 32].

        A weight is scale * quant - min of its group.
        """
        self.out_features, self.in_features = quants.shape
        aten = torch.ops.aten
        if quants.device.type == "cpu":
            self._product = aten._weight_int4pack_mm_for_cpu.default
            self._packed = aten._convert_weight_to_int4pack_for_cpu(quants.int(), 1)
        else:
            self._product = aten._weight_int4pack_mm.default
            pairs = quants[:, ::2] << 4 | quants[:, 1::2]
            self._packed = aten._convert_weight_to_int4pack(pairs, 8)
        # The kernels compute (quant - 8) * scale + zero.
        zeros = 8 * scales - mins
        self._scales_zeros = torch.stack((scales.t(), zeros.t()), -1).bfloat16().contiguous()
        self._bias = bias
        self.weight_bytes = self._packed.nbytes + self._scales_zeros.nbytes + bytes_of(bias)

    def __call__(self, rows: Tensor) -> Tensor:
        if not len(rows):  # CUDA refuses them.
            return rows.new_empty(0, self.out_features)
        out: Tensor = self._product(rows.bfloat16(), self._packed, GROUP, self._scales_zeros)
        out = out.to(rows.dtype)
        return out if self._bias is None else out.add_(self._bias)


@functools.cache
def int8_levels() -> int:
    """Return the largest quant of rows: 127, or 63 if sums of two products saturate at 16 bits.

    That is x86 without VNNI: the widest rows times the widest weights come out too small there.
    """
    ones = torch.ones(1, 64)
    widest = Int8(torch.full((16, 64), 127, dtype=torch.int8), torch.full((16,), 1 / 127), None)
    return 127 if torch.allclose(widest(ones), torch.full((1, 16), 64.0), rtol=1e-3) else 63


def _prepack(quants: Tensor, scales: Tensor) -> object:
    engine = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            # Quantized tensor types are deprecated, but nothing else reaches this kernel; pyproject pins the
            # version.
            warnings.simplefilter("ignore", UserWarning)
            zero_points = torch.zeros(len(quants), dtype=torch.int64)
            typed = torch._make_per_channel_quantized_tensor(quants, scales.double(), zero_points, 0)
            return torch.ops.quantized.linear_prepack(typed, None)
    finally:
        torch.backends.quantized.engine = engine
