"""The weights and the KV cache of a layer, in values and, at a precision, in bytes."""

from dataclasses import dataclass
from typing import Literal, get_args

Precision = Literal["fp32", "bf16", "fp16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BYTES_PER_VALUE: dict[Precision, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 4, "int4": 4}
"""Bytes of a value that is not quantized (norms, biases, rows, keys) on a CPU.

A GPU halves those of int8 and int4.
"""

QUANTIZED: tuple[Precision, ...] = ("int8", "int4")
_SCALE_BYTES = 4
_GROUP_VALUES = 32


@dataclass(frozen=True, slots=True)
class KvShape:
    """The KV cache of one token in one layer: keys [kv_heads, key_dim] and values [kv_heads, value_dim]."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class LayerCost:
    """A layer's weights in values: those of its matrices, the rows of these, and values that stay unquantized."""

    matrix_values: int
    matrix_rows: int
    plain_values: int

    @property
    def values(self) -> int:
        return self.matrix_values + self.plain_values

    def bytes_at(self, precision: Precision) -> int:
        """Return the bytes in memory.

        int8 has a scale for each row of a matrix, int4 a scale and a minimum for each group.
        """
        plain_bytes = self.plain_values * BYTES_PER_VALUE[precision]
        if precision == "int8":
            return plain_bytes + self.matrix_values + self.matrix_rows * _SCALE_BYTES
        if precision == "int4":
            return plain_bytes + self.matrix_values // 2 + self.matrix_values // _GROUP_VALUES * _SCALE_BYTES
        return plain_bytes + self.matrix_values * BYTES_PER_VALUE[precision]
