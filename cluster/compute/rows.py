"""Rows of activations as bytes on a link, and back: at full width, at half, or as int8 in blocks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cluster.errors import FrameInvalid
from cluster.models.stage_spec import WireFormat

# Values per scale: at an error of 0.7 % a hop, this keeps massive channels from drowning their neighbours.
_BLOCK = 128

_WIDE: dict[WireFormat, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def kept_dtype(wire: WireFormat) -> torch.dtype:
    """Return the dtype of the rows that a stage keeps, so that sending them again sends the same bytes."""
    return _WIDE.get(wire, torch.bfloat16)


def row_bytes(hidden: int, wire: WireFormat) -> int:
    """Return the bytes of one row on the link."""
    if wire == "int8":
        return hidden + 4 * _blocks(hidden)
    return hidden * _WIDE[wire].itemsize


def narrowed(rows: Tensor, wire: WireFormat) -> Tensor:
    """Return rows [n, hidden] as they are kept, so that keeping them does not change what `encode` sends."""
    return rows.to(kept_dtype(wire))


def encode(kept: Tensor, wire: WireFormat) -> memoryview:
    """Return the bytes of rows [n, hidden] that `narrowed` has made, without a copy if they are in main memory."""
    if wire == "int8":
        return _raw(_compressed(kept.float()))
    return _raw(kept)


def decode(payload: bytearray, count: int, hidden: int, wire: WireFormat, dtype: torch.dtype) -> Tensor:
    """Return rows [count, hidden] in `dtype`. Raise FrameInvalid if the payload has another length."""
    if len(payload) != count * row_bytes(hidden, wire):
        raise FrameInvalid(f"{len(payload)} bytes are not {count} rows of {hidden} values in {wire}")
    if wire != "int8":
        return torch.frombuffer(payload, dtype=_WIDE[wire]).view(count, hidden).to(dtype)
    packed = torch.frombuffer(payload, dtype=torch.int8).view(count, -1)
    scales = packed[:, hidden:].contiguous().view(torch.float32)
    spread = scales.repeat_interleave(_BLOCK, dim=1)[:, :hidden]
    return (packed[:, :hidden].float() * spread).to(dtype)


def _compressed(rows: Tensor) -> Tensor:
    """Return [n, hidden + 4 * blocks] int8: the values, then each block's scale as the four bytes of a float."""
    count, hidden = rows.shape
    blocks = F.pad(rows, (0, _blocks(hidden) * _BLOCK - hidden)).view(count, -1, _BLOCK)
    scales = blocks.abs().amax(dim=2).clamp(min=1e-30) / 127
    values = (blocks / scales.unsqueeze(2)).round_().to(torch.int8).view(count, -1)[:, :hidden]
    return torch.cat((values, scales.contiguous().view(torch.int8)), dim=1)


def _blocks(hidden: int) -> int:
    return -(-hidden // _BLOCK)


def _raw(rows: Tensor) -> memoryview:
    return rows.contiguous().cpu().view(torch.uint8).numpy().reshape(-1).data
