"""A packed matrix product and the operators around it as one call.

Operators on packed weights cost about 10 us each when Python calls them, as much as a small product itself.
TorchScript calls the whole chain for less than that. torch.compile would need a C++ compiler on every machine.
"""

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Int8Rows(nn.Module):
    """FBGEMM's 8-bit product of rows that are rounded to 8 bits, each by its own largest value.

    `packed` holds int8 weights and their scales, `step` is 1 / levels, and `zero` is the quant that stands for 0.
    Maps rows [rows, in] to [rows, out].
    """

    bias: Tensor | None

    def __init__(self, packed: object, step: float, zero: int, bias: Tensor | None) -> None:
        super().__init__()
        self.packed, self.step, self.zero, self.bias = packed, step, zero, bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows [rows, out] of rows fp32 [rows, in]."""
        peaks = rows.abs().amax(1, True)
        # A row of zeros becomes NaN here and something finite below; its peak turns that into zeros again.
        out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows / peaks, self.step, self.zero, self.packed
        )
        bias = self.bias
        if bias is None:
            return out.mul_(peaks)
        return torch.addcmul(bias, out, peaks)


class HalfRows(nn.Module):
    """FBGEMM's product of fp32 rows with weights held in fp16, which were divided by `undo`.

    Maps rows [rows, in] to [rows, out].
    """

    bias: Tensor | None

    def __init__(self, packed: object, undo: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.packed, self.undo, self.bias = packed, undo, bias

    def forward(self, rows: Tensor) -> Tensor:
        """Return rows [rows, out] of rows fp32 [rows, in]."""
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)
        bias = self.bias
        if bias is None:
            return out.mul_(self.undo)
        return torch.addcmul(bias, out, self.undo)


_compiled: dict[type[nn.Module], Any] = {}
_compiling = threading.Lock()


def fuse(kind: type[nn.Module], **attributes: object) -> Callable[[Tensor], Tensor]:
    """Return `kind`'s forward with these attributes: it maps rows [rows, in] to [rows, out].

    It is compiled once per process; further ones cost microseconds.
    """
    with _compiling, warnings.catch_warnings():
        # torch.jit is deprecated, but nothing else does this without a compiler; pyproject pins the version.
        warnings.simplefilter("ignore", DeprecationWarning)
        if kind not in _compiled:
            _compiled[kind] = torch.jit.script(kind(**attributes))._c._type()
    module = torch._C._create_module_with_type(_compiled[kind])
    for name, value in {"training": False, **attributes}.items():
        module.setattr(name, value)
    forward: Callable[[Tensor], Tensor] = module._get_method("forward")
    return forward
