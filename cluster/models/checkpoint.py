"""Names and shapes of a checkpoint's tensors, layer by layer and stage by stage. Needs no torch."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cluster.errors import ModelInvalid
from cluster.models import compat_card
from cluster.models.family import FAMILIES, Family
from cluster.models.gguf_file import BLOCK_SIZES
from cluster.models.manifest import Manifest, TensorEntry
from cluster.models.model_card import ModelCard
from cluster.models.stage_spec import StageSpec


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as stored in the file."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix [out, in], stacked from stored ones (possibly [in, out]), and their biases."""

    weights: tuple[Stored, ...]
    biases: tuple[Stored, ...] = ()
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """The parts of one layer: `single` tensors by role, matrices by role, and each expert's two matrices."""

    single: dict[str, Stored]
    matrices: dict[str, Matrix]
    experts: tuple[tuple[Matrix, Matrix], ...] = ()

    def stored(self) -> Iterator[Stored]:
        yield from self.single.values()
        for matrix in (*self.matrices.values(), *(part for expert in self.experts for part in expert)):
            yield from matrix.weights
            yield from matrix.biases


class Checkpoint:
    """The stored tensors of a model. `names` are those in its files: some families come with two prefixes."""

    def __init__(self, card: ModelCard, names: Collection[str] = ()) -> None:
        self._card = card
        self._family = family = FAMILIES[card.family]
        roots = family.names.roots
        self._root = next((root for root in roots if root + family.names.embedding in names), roots[0])
        self.embedding = self._at(family.names.embedding, card.vocabulary, card.hidden)
        self.head = Stored(family.names.head, (card.vocabulary, card.hidden))
        if card.tied_embeddings:
            self.head = self.embedding

    @property
    def positions(self) -> tuple[Stored, ...]:
        """The learned positions; empty if positions are rotations."""
        if not self._family.learned_positions:
            return ()
        return (self._at(self._family.names.positions, self._card.context_tokens, self._card.hidden),)

    @property
    def final_norm(self) -> dict[str, Stored]:
        return _norm(self._family, "final_norm", self._root + self._family.names.final_norm, self._card.hidden)

    def layer(self, layer: int) -> LayerTensors:
        """Return the stored tensors of a layer."""
        card, family, names = self._card, self._family, self._family.names
        prefix = self._root + names.layer.format(layer)
        single = _norm(family, "input_norm", prefix + names.input_norm, card.hidden)
        single |= _norm(family, "mlp_norm", prefix + names.mlp_norm, card.hidden)
        if family.sandwich:
            single |= _norm(family, "attended_norm", prefix + names.attended_norm, card.hidden)
            single |= _norm(family, "mlp_done_norm", prefix + names.mlp_done_norm, card.hidden)
        if family.qk_norm:
            single["q_norm"] = Stored(f"{prefix}{names.q_norm}.weight", (card.head_dim,))
            single["k_norm"] = Stored(f"{prefix}{names.k_norm}.weight", (card.head_dim,))
        if family.sinks:
            single["sinks"] = Stored(prefix + names.sinks, (card.heads,))
        matrices = self._attention(prefix)
        if not card.has_experts(layer):
            matrices |= dict(zip(("gate_up", "down"), self._mlp(prefix, card.intermediate), strict=True))
            return LayerTensors(single, matrices)
        single |= self._router(prefix)
        if names.experts_packed:
            return LayerTensors(single | self._packed_experts(prefix), matrices)
        return LayerTensors(single, matrices, self._experts(prefix))

    def ends(self, *, first: bool, last: bool) -> Iterator[Stored]:
        """Yield what a stage holds beside its layers."""
        if first:
            yield from (self.embedding, *self.positions)
        if last:
            yield from self.final_norm.values()
            if not (first and self._card.tied_embeddings):
                yield self.head

    def _at(self, name: str, *shape: int) -> Stored:
        return Stored(self._root + name, shape)

    def _attention(self, prefix: str) -> dict[str, Matrix]:
        card, names = self._card, self._family.names
        queries, keys = card.heads * card.head_dim, card.kv_heads * card.head_dim
        return {
            "qkv": self._matrix(prefix, names.qkv, (queries, keys, keys), card.hidden, card.attention_bias),
            "output": self._matrix(prefix, (names.output,), (card.hidden,), queries, card.output_bias),
        }

    def _mlp(self, prefix: str, width: int) -> tuple[Matrix, Matrix]:
        card, names = self._card, self._family.names
        widths = (width, width) if self._family.gated else (width,)
        return (
            self._matrix(prefix, names.gate_up, widths, card.hidden, card.mlp_bias),
            self._matrix(prefix, (names.down,), (card.hidden,), width, card.mlp_bias),
        )

    def _experts(self, prefix: str) -> tuple[tuple[Matrix, Matrix], ...]:
        card, names = self._card, self._family.names
        assert card.experts
        width = card.experts.intermediate

        def expert(number: int) -> tuple[Matrix, Matrix]:
            gate_up = tuple(name.format(number) for name in names.expert_gate_up)
            down = (names.expert_down.format(number),)
            return (
                self._matrix(prefix, gate_up, (width, width), card.hidden, card.mlp_bias),
                self._matrix(prefix, down, (card.hidden,), width, card.mlp_bias),
            )

        return tuple(expert(number) for number in range(card.experts.count))

    def _router(self, prefix: str) -> dict[str, Stored]:
        card, name = self._card, prefix + self._family.names.router
        assert card.experts
        router = {"router": Stored(f"{name}.weight", (card.experts.count, card.hidden))}
        if card.mlp_bias:
            router["router_bias"] = Stored(f"{name}.bias", (card.experts.count,))
        return router

    def _packed_experts(self, prefix: str) -> dict[str, Stored]:
        """Return all experts of a layer in one tensor:

        [experts, in, out], or MXFP4 blocks of [experts, out, in].
        """
        card, names = self._card, self._family.names
        assert card.experts
        count, width = card.experts.count, card.experts.intermediate
        tensors = {}
        for role, name, out, into in (
            ("expert_gate_up", names.expert_gate_up[0], 2 * width, card.hidden),
            ("expert_down", names.expert_down, card.hidden, width),
        ):
            tensors[f"{role}_bias"] = Stored(f"{prefix}{name}_bias", (count, out))
            if card.experts.blocks:
                blocks = -(-into // MXFP4_VALUES)
                tensors[f"{role}_blocks"] = Stored(
                    f"{prefix}{name}_blocks", (count, out, blocks, MXFP4_VALUES // 2)
                )
                tensors[f"{role}_scales"] = Stored(f"{prefix}{name}_scales", (count, out, blocks))
            else:
                tensors[role] = Stored(prefix + name, (count, into, out))
        return tensors

    def _matrix(
        self, prefix: str, names: tuple[str, ...], rows: tuple[int, ...], columns: int, biased: bool
    ) -> Matrix:
        """Return a matrix of parts with `rows` rows each. A file that has fused them has only one name."""
        if len(names) == 1:
            rows = (sum(rows),)
        turned = self._family.transposed
        return Matrix(
            weights=tuple(
                Stored(f"{prefix}{name}.weight", (columns, count) if turned else (count, columns))
                for name, count in zip(names, rows, strict=True)
            ),
            biases=tuple(
                Stored(f"{prefix}{name}.bias", (count,)) for name, count in zip(names, rows, strict=True) if biased
            ),
            transposed=turned,
        )


MXFP4_VALUES = 32
"""Number of values that share a scale; a byte holds two of them."""
_MXFP4_PARTS = ("_blocks", "_scales")


def _norm(family: Family, role: str, name: str, hidden: int) -> dict[str, Stored]:
    norm = {role: Stored(f"{name}.weight", (hidden,))}
    if family.norm == "layer":
        norm[f"{role}_bias"] = Stored(f"{name}.bias", (hidden,))
    return norm


def stage_tensor_names(card: ModelCard, spec: StageSpec, names: Collection[str] = ()) -> list[str]:
    """Return the tensors that a stage needs, and no others. `names` are those in the model's files."""
    if card.path == "compat":
        return compat_card.stage_names(card, spec, names)
    checkpoint = Checkpoint(card, names)
    stored = [
        tensor.name
        for layer in range(spec.first_layer, spec.end_layer)
        for tensor in checkpoint.layer(layer).stored()
    ]
    return stored + [tensor.name for tensor in checkpoint.ends(first=spec.is_first, last=spec.is_last)]


def check_tensors(card: ModelCard, manifest: Manifest) -> None:
    """Raise ModelInvalid if the checkpoint lacks a tensor, or if one's shape or type is wrong."""
    if card.path == "compat":
        compat_card.check_names(card, manifest)
        return
    checkpoint = Checkpoint(card, manifest.tensors)
    expected = list(checkpoint.ends(first=True, last=True))
    for layer in range(card.layers):
        expected += checkpoint.layer(layer).stored()
    for tensor in expected:
        entry = manifest.tensors.get(tensor.name)
        if entry is None:
            raise ModelInvalid(f"{manifest.name} lacks the tensor {tensor.name}, which its config.json requires")
        if tuple(entry.shape) != tensor.shape:
            raise ModelInvalid(
                f"{tensor.name} has shape {list(entry.shape)}, config.json says {list(tensor.shape)}"
            )
        _check_dtype(tensor.name, entry)


def _check_dtype(name: str, entry: TensorEntry) -> None:
    """Raise ModelInvalid for a wrong type.

    Only MXFP4 uses bytes; 8-bit floats need scales, which are not read here.
    """
    allowed = ("U8",) if name.endswith(_MXFP4_PARTS) else tuple(BLOCK_SIZES)
    if entry.dtype not in allowed:
        raise ModelInvalid(f"{name} has dtype {entry.dtype}; there it can be {', '.join(allowed)}")
