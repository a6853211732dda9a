"""One stage's tensors and no others: read by range, checked against the manifest, packed at its precision."""

import ctypes
import hashlib
import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from cluster.compute import gguf_blocks
from cluster.compute.decoder import LayerWeights, StageWeights
from cluster.compute.feed_forward import activation, feed_forward, mixture
from cluster.compute.linear import Linear, pack, pack_int4
from cluster.compute.norms import Apply, layer_norm, rms_norm
from cluster.compute.quantize import int4_groups
from cluster.compute.rotary import pair_order
from cluster.errors import WeightsMismatch
from cluster.models.checkpoint import Checkpoint, LayerTensors, Matrix, Stored, check_tensors
from cluster.models.family import FAMILIES
from cluster.models.manifest import Manifest, TensorEntry
from cluster.models.model_card import ModelCard, Precision
from cluster.models.stage_spec import StageSpec

ReadTensor = Callable[[TensorEntry], bytearray]
"""Reads a tensor's raw bytes, from a checkpoint folder or a fetched copy."""

_WIDE: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_MXFP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the codes 0 to 7; the fourth bit is the sign (OCP Microscaling Formats 1.0, E2M1)."""
_MXFP4_EXPONENT_BIAS = 127


def read_pinned(name: str, entry: TensorEntry, read: ReadTensor) -> bytearray:
    """Return a tensor's raw bytes. Raise WeightsMismatch if they differ from the manifest."""
    raw = read(entry)
    found = hashlib.sha256(raw).hexdigest()
    if found != entry.sha256:
        raise WeightsMismatch(name, entry.sha256, found)
    return raw


def row_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the dtype of rows, keys and values at a precision.

    Quantized models compute in fp32 on CPUs, in bf16 on GPUs.
    """
    return _WIDE.get(precision, torch.float32 if device.type == "cpu" else torch.bfloat16)


def load_stage(
    card: ModelCard,
    manifest: Manifest,
    spec: StageSpec,
    read: ReadTensor,
    device: torch.device,
    *,
    with_head: bool = True,
) -> StageWeights:
    """Load, fuse and pack a stage's weights.

    At most one matrix (of GPT-OSS, one layer's) is in memory twice. Without its head a last stage ends in the
    final norm. Raise WeightsMismatch if bytes differ from the manifest, ModelInvalid if shapes contradict
    config.json.
    """
    check_tensors(card, manifest)
    return _Loader(card, manifest, spec, read, device).stage(with_head=with_head)


class _Loader:
    def __init__(
        self, card: ModelCard, manifest: Manifest, spec: StageSpec, read: ReadTensor, device: torch.device
    ) -> None:
        self._card = card
        self._family = FAMILIES[card.family]
        self._manifest = manifest
        self._spec = spec
        self._read = read
        self._device = device
        self._row_dtype = row_dtype(spec.precision, device)
        self._checkpoint = Checkpoint(card, manifest.tensors)

    def stage(self, *, with_head: bool) -> StageWeights:
        spec = self._spec
        layers = []
        for layer in range(spec.first_layer, spec.end_layer):
            layers.append(self._layer(layer))
            _give_back()
        embedding = self._embedding() if spec.is_first else None
        positions = [
            self._load(stored).to(self._row_dtype) for stored in self._checkpoint.positions if spec.is_first
        ]
        weights = StageWeights(
            layers=layers,
            embedding=embedding,
            positions=positions[0] if positions else None,
            final_norm=self._norm(self._checkpoint.final_norm, "final_norm") if spec.is_last else None,
            head=self._head(embedding) if spec.is_last and with_head else None,
        )
        _give_back()
        return weights

    def _embedding(self) -> Tensor:
        """Return the table [vocabulary, hidden], as narrow as the file or the rows.

        Looked-up values are widened.
        """
        table = self._load(self._checkpoint.embedding)
        return table.to(self._row_dtype) if table.itemsize > self._row_dtype.itemsize else table

    def _head(self, embedding: Tensor | None) -> Linear:
        if embedding is not None and self._card.tied_embeddings and self._spec.precision != "int4":
            return pack(embedding, None, self._spec.precision)
        return self._matrix(Matrix((self._checkpoint.head,)))

    def _layer(self, layer: int) -> LayerWeights:
        family, tensors = self._family, self._checkpoint.layer(layer)
        single = tensors.single
        return LayerWeights(
            input_norm=self._norm(single, "input_norm"),
            qkv=self._matrix(tensors.matrices["qkv"], self._head_order(layer)),
            head_norm=self._head_norm(single, layer) if family.qk_norm else None,
            sinks=self._load(single["sinks"]).float() if family.sinks else None,
            output=self._matrix(tensors.matrices["output"]),
            attended_norm=self._norm(single, "attended_norm") if family.sandwich else None,
            mlp_norm=self._norm(single, "mlp_norm"),
            mlp=self._mixture(tensors) if self._card.has_experts(layer) else self._mlp(tensors),
            mlp_done_norm=self._norm(single, "mlp_done_norm") if family.sandwich else None,
        )

    def _norm(self, single: dict[str, Stored], role: str) -> Apply:
        weight, epsilon = self._load(single[role]).float(), self._card.norm_epsilon
        if self._family.norm == "layer":
            return layer_norm(weight, self._load(single[f"{role}_bias"]).float(), epsilon)
        return rms_norm(weight + 1 if self._family.norm == "rms_plus_one" else weight, epsilon)

    def _head_norm(self, single: dict[str, Stored], layer: int) -> Apply:
        """Return one norm over queries and keys.

        Its weight [heads + kv_heads, head_dim] has a row for each head.
        """
        card, order = self._card, self._pair_order(layer)
        of_queries, of_keys = (self._load(single[role]).float()[order] for role in ("q_norm", "k_norm"))
        weight = torch.cat((of_queries.expand(card.heads, -1), of_keys.expand(card.kv_heads, -1)))
        return rms_norm(weight + 1 if self._family.norm == "rms_plus_one" else weight, card.norm_epsilon)

    def _pair_order(self, layer: int) -> Tensor:
        card, kind = self._card, self._card.rope_kind(layer)
        rope = card.local_rope if kind == 1 and card.local_rope else card.rope
        order = torch.arange(card.head_dim) if kind is None else pair_order(rope, card.head_dim)
        return order.to(self._device)

    def _head_order(self, layer: int) -> Tensor | None:
        """Return the order of the rows of fused queries, keys and values that puts rotated pairs side by side."""
        card = self._card
        if card.rope_kind(layer) is None:
            return None
        turning, head_dim = card.heads + card.kv_heads, card.head_dim
        begins = torch.arange(0, turning * head_dim, head_dim, device=self._device)
        turned = (begins[:, None] + self._pair_order(layer)).flatten()
        values = torch.arange(turning * head_dim, (turning + card.kv_heads) * head_dim, device=self._device)
        return torch.cat((turned, values))

    def _mlp(self, tensors: LayerTensors) -> Apply:
        card = self._card
        matrices = tensors.matrices
        return feed_forward(
            self._matrix(matrices["gate_up"]),
            self._matrix(matrices["down"]),
            activation(card.activation, gated=self._family.gated),
        )

    def _mixture(self, tensors: LayerTensors) -> Apply:
        experts = self._card.experts
        assert experts is not None
        bend = activation(self._card.activation, gated=True, alpha=experts.alpha, limit=experts.limit)
        if self._family.names.experts_packed:
            gate_ups = self._packed(tensors.single, "expert_gate_up", interleaved=True)
            downs = self._packed(tensors.single, "expert_down", interleaved=False)
            pairs: Iterable[tuple[Linear, Linear]] = zip(gate_ups, downs, strict=True)
        else:
            pairs = ((self._matrix(gate_up), self._matrix(down)) for gate_up, down in tensors.experts)
        router_bias = tensors.single.get("router_bias")
        return mixture(
            self._load(tensors.single["router"]).float(),
            None if router_bias is None else self._load(router_bias).float(),
            [feed_forward(gate_up, down, bend) for gate_up, down in pairs],
            experts.per_token,
            normalized=experts.normalized,
        )

    def _packed(self, single: dict[str, Stored], role: str, *, interleaved: bool) -> list[Linear]:
        """Return each expert's matrix from one tensor for all. GPT-OSS interleaves the rows of gates and ups."""
        biases = self._load(single[f"{role}_bias"])
        if role in single:
            weights: Iterable[Tensor] = (part.mT for part in self._load(single[role]))
        else:
            blocks, scales = self._load(single[f"{role}_blocks"]), self._load(single[f"{role}_scales"])
            weights = (_from_mxfp4(*part) for part in zip(blocks, scales, strict=True))

        def apart(rows: Tensor) -> Tensor:
            return torch.cat((rows[::2], rows[1::2])) if interleaved else rows

        return [
            pack(apart(weight), apart(bias), self._spec.precision)
            for weight, bias in zip(weights, biases, strict=True)
        ]

    def _matrix(self, matrix: Matrix, order: Tensor | None = None) -> Linear:
        """Stack the stored matrices, put rows in `order`, and pack them."""

        def stacked(tensors: tuple[Stored, ...]) -> Tensor:
            parts = [self._load(stored) for stored in tensors]
            if matrix.transposed and parts[0].dim() == 2:
                parts = [part.mT for part in parts]
            # A matrix that the file has fused needs no copy.
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            return whole if order is None else whole[order]

        bias = stacked(matrix.biases) if matrix.biases else None
        if groups := self._four_bits(matrix.weights, order):
            return pack_int4(*groups, bias)
        return pack(stacked(matrix.weights), bias, self._spec.precision)

    def _four_bits(
        self, tensors: tuple[Stored, ...], order: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return quants, scales and mins if the file is a 4-bit GGUF, else None.

        Only its other types are rounded here.
        """
        entries = [self._manifest.tensors[stored.name] for stored in tensors]
        if self._spec.precision != "int4" or not any(entry.dtype in gguf_blocks.FOUR_BITS for entry in entries):
            return None
        parts = [
            gguf_blocks.int4_groups(entry, self._raw(stored))
            if entry.dtype in gguf_blocks.FOUR_BITS
            else int4_groups(self._load(stored))
            for stored, entry in zip(tensors, entries, strict=True)
        ]
        quants, scales, mins = (torch.cat(kind).to(self._device) for kind in zip(*parts, strict=True))
        return (quants, scales, mins) if order is None else (quants[order], scales[order], mins[order])

    def _load(self, stored: Stored) -> Tensor:
        """Return a tensor as in the file: fp32 if it is quantized there, bytes for MXFP4."""
        entry, raw = self._manifest.tensors[stored.name], self._raw(stored)
        if entry.dtype == "U8":
            return torch.frombuffer(raw, dtype=torch.uint8).view(entry.shape).to(self._device)
        return gguf_blocks.dequantise(entry, raw).to(self._device)

    def _raw(self, stored: Stored) -> bytearray:
        return read_pinned(stored.name, self._manifest.tensors[stored.name], self._read)


def _give_back() -> None:
    """Return freed memory to the system.

    Otherwise glibc keeps the holes that reading and packing leave: another three quarters of a quantized model's
    size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _from_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return MXFP4 weights, as in GPT-OSS's files, as bf16 [out, in], which holds them exactly.

    `blocks` is uint8 [out, in / 32, 16] with two codes a byte, the lower half first; `scales` is uint8 [out, in /
    32].
    """
    table = torch.tensor((*_MXFP4_VALUES, *(-value for value in _MXFP4_VALUES)), device=blocks.device)
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    exponents = scales.to(torch.int32).sub_(_MXFP4_EXPONENT_BIAS).unsqueeze(-1)
    values = torch.ldexp(table[codes.int()], exponents)
    return values.flatten(-2).to(torch.bfloat16)
