"""GGUF's blocks of quantized weights in torch: back to floats, or quant by quant into int4 groups of 32.

Every type is unpacked the same way: value = scale * (quant - zero) - minimum, with one scale and one minimum per
group of a block. The layouts are those in ggml-common.h of https://github.com/ggml-org/ggml.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cluster.models.gguf_file import BLOCK_SIZES
from cluster.models.manifest import TensorEntry

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}
FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
"""Types whose blocks are groups of 32 quants of four bits with a scale and a minimum."""

# Bounds the memory between bytes and values, and keeps it within a core's caches.
_CHUNK_VALUES = 2**20
_LEVELS_4BIT = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of the codes of IQ4_NL and IQ4_XS."""


class _Groups(NamedTuple):
    """Quants [blocks, groups, values], scales and minimums [blocks, groups]."""

    quants: Tensor
    zero: int
    scales: Tensor
    minimums: Tensor | None = None

    def values(self) -> Tensor:
        shifted = self.quants.float()
        if self.zero:
            shifted -= self.zero
        shifted *= self.scales.unsqueeze(-1)
        if self.minimums is not None:
            shifted -= self.minimums.unsqueeze(-1)
        return shifted


def dequantise(entry: TensorEntry, raw: bytearray) -> Tensor:
    """Return the tensor of a manifest's entry, in the entry's shape: fp32 if it was quantized, otherwise as stored.

    This also handles safetensors' plain types. Rows of `entry.rope_heads` come back in halves order.
    """
    plain = PLAIN.get(entry.dtype)
    if plain is not None:
        tensor = torch.frombuffer(raw, dtype=plain).view(entry.shape)
    else:
        values, block_bytes = BLOCK_SIZES[entry.dtype]
        blocks = torch.frombuffer(raw, dtype=torch.uint8).view(-1, block_bytes)
        tensor = torch.empty(len(blocks), values, dtype=torch.float32)
        take = _TAKE_APART[entry.dtype]
        step = _CHUNK_VALUES // values
        for begin in range(0, len(blocks), step):
            part = take(blocks[begin : begin + step]).values()
            tensor[begin : begin + step] = part.view(len(part), values)
        tensor = tensor.view(entry.shape)
    return halves_order(tensor, entry.rope_heads)


def int4_groups(entry: TensorEntry, raw: bytearray) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix of one of FOUR_BITS as linear.pack_int4 takes it: value = scale * quant - min.

    It is quants uint8 [out, in] of 0..15, scales and mins fp32 [out, in / 32]. Quants stay unchanged; pack_int4
    rounds scales and minimums to bf16.
    """
    blocks = torch.frombuffer(raw, dtype=torch.uint8).view(-1, BLOCK_SIZES[entry.dtype][1])
    quants, zero, scales, minimums = _TAKE_APART[entry.dtype](blocks)
    shift = scales * zero if minimums is None else minimums
    quants, scales, shift = (part.reshape(entry.shape[0], -1) for part in (quants, scales, shift))
    heads = entry.rope_heads
    return halves_order(quants, heads), halves_order(scales, heads), halves_order(shift, heads)


def halves_order(rows: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's interleaving of rows [heads * size, ...]: in each head, even rows first, then odd ones.

    Interleaved rows are rotated with their neighbours; this code pairs each row with the one half a head away.
    Without heads the rows stay unchanged.
    """
    if not heads:
        return rows
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _halfs(blocks: Tensor, at: int) -> Tensor:
    """Return each block's half-precision number at byte `at`, as fp32 [blocks, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Return [..., n] bytes as [..., 2 * n]: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Return 32 bits from byte `at` on as 0 or 16: [blocks, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, at : at + 4].unsqueeze(-1) >> shifts) & 1
    return bits.view(-1, 32) << 4


def _q4_0(blocks: Tensor) -> _Groups:
    return _Groups(_nibbles(blocks[:, 2:]).unsqueeze(1), 8, _halfs(blocks, 0))


def _q4_1(blocks: Tensor) -> _Groups:
    return _Groups(_nibbles(blocks[:, 4:]).unsqueeze(1), 0, _halfs(blocks, 0), -_halfs(blocks, 2))


def _q5_0(blocks: Tensor) -> _Groups:
    quants = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _Groups(quants.unsqueeze(1), 16, _halfs(blocks, 0))


def _q5_1(blocks: Tensor) -> _Groups:
    quants = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _Groups(quants.unsqueeze(1), 0, _halfs(blocks, 0), -_halfs(blocks, 2))


def _q8_0(blocks: Tensor) -> _Groups:
    return _Groups(blocks[:, 2:].view(torch.int8).unsqueeze(1), 0, _halfs(blocks, 0))


def _crumbs(packed: Tensor) -> Tensor:
    """Return 64 bytes as 256 two-bit numbers: of each half of the bytes all lowest pairs first."""
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    return ((packed.reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 16, 16)


def _q2_k(blocks: Tensor) -> _Groups:
    packed = blocks[:, :16]
    scales, minimums = _halfs(blocks, 80) * (packed & 15), _halfs(blocks, 82) * (packed >> 4)
    return _Groups(_crumbs(blocks[:, 16:80]), 0, scales, minimums)


def _q3_k(blocks: Tensor) -> _Groups:
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = ((blocks[:, :32].unsqueeze(1) >> shifts) & 1).view(-1, 16, 16)
    low, upper = _nibbles(blocks[:, 96:104]), blocks[:, 104:108]
    upper = torch.cat([(upper >> shift) & 3 for shift in (0, 2, 4, 6)], -1)
    scales = _halfs(blocks, 108) * ((low | upper << 4).float() - 32)
    return _Groups(_crumbs(blocks[:, 32:96]) | high << 2, 4, scales)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return 12 bytes of Q4_K and Q5_K as 8 scales and 8 minimums of six bits."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (third & 15) | (first >> 6) << 4), -1)
    minimums = torch.cat((second & 63, (third >> 4) | (second >> 6) << 4), -1)
    return scales, minimums


def _q4_k(blocks: Tensor) -> _Groups:
    scales, minimums = _six_bits(blocks[:, 4:16])
    quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32)
    return _Groups(quants, 0, _halfs(blocks, 0) * scales, _halfs(blocks, 2) * minimums)


def _q5_k(blocks: Tensor) -> _Groups:
    scales, minimums = _six_bits(blocks[:, 4:16])
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    high = ((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4
    quants = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32) | high
    return _Groups(quants, 0, _halfs(blocks, 0) * scales, _halfs(blocks, 2) * minimums)


def _q6_k(blocks: Tensor) -> _Groups:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).view(-1, 16, 16)
    high = _crumbs(blocks[:, 128:192]) << 4
    scales = _halfs(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    return _Groups(low | high, 32, scales)


def _levels(codes: Tensor) -> Tensor:
    return torch.tensor(_LEVELS_4BIT, dtype=torch.int8)[codes.int()]


def _iq4_nl(blocks: Tensor) -> _Groups:
    return _Groups(_levels(_nibbles(blocks[:, 2:])).unsqueeze(1), 0, _halfs(blocks, 0))


def _iq4_xs(blocks: Tensor) -> _Groups:
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), -1).view(-1, 8)
    high = ((blocks[:, 2:4, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)) & 3).view(-1, 8)
    scales = _halfs(blocks, 0) * ((low | high << 4).float() - 32)
    return _Groups(_levels(_nibbles(blocks[:, 8:].reshape(-1, 8, 16))), 0, scales)


_TAKE_APART: dict[str, Callable[[Tensor], _Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}
