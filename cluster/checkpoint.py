"""Names and shapes of a Llama checkpoint's tensors, stage by stage. Needs no torch."""

from cluster.errors import ModelInvalid
from cluster.manifest import Manifest
from cluster.model_card import ModelCard
from cluster.plan import StageSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT_HEAD = "lm_head.weight"


def stage_tensor_names(card: ModelCard, spec: StageSpec) -> list[str]:
    """The tensors that a stage needs, and no others."""
    names = [
        f"model.layers.{layer}.{part}"
        for layer in range(spec.first_layer, spec.end_layer)
        for part in _layer_shapes(card)
    ]
    if spec.is_first or (spec.is_last and card.tied_embeddings):
        names.append(EMBEDDING)
    if spec.is_last:
        names += [FINAL_NORM] if card.tied_embeddings else [FINAL_NORM, OUTPUT_HEAD]
    return names


def check_tensors(card: ModelCard, manifest: Manifest) -> None:
    """Raises ModelInvalid when the checkpoint lacks a tensor or one's shape contradicts config.json."""
    expected = {EMBEDDING: (card.vocabulary, card.hidden), FINAL_NORM: (card.hidden,)}
    if not card.tied_embeddings:
        expected[OUTPUT_HEAD] = (card.vocabulary, card.hidden)
    for layer in range(card.layers):
        expected |= {f"model.layers.{layer}.{part}": shape for part, shape in _layer_shapes(card).items()}
    for name, shape in expected.items():
        entry = manifest.tensors.get(name)
        if entry is None:
            raise ModelInvalid(f"{manifest.name} lacks the tensor {name} that its config.json calls for")
        if tuple(entry.shape) != shape:
            raise ModelInvalid(f"{name} has shape {list(entry.shape)}, config.json says {list(shape)}")


def _layer_shapes(card: ModelCard) -> dict[str, tuple[int, ...]]:
    queries, keys = card.heads * card.head_dim, card.kv_heads * card.head_dim
    projections = {
        "self_attn.q_proj": (queries, card.hidden),
        "self_attn.k_proj": (keys, card.hidden),
        "self_attn.v_proj": (keys, card.hidden),
        "self_attn.o_proj": (card.hidden, queries),
        "mlp.gate_proj": (card.intermediate, card.hidden),
        "mlp.up_proj": (card.intermediate, card.hidden),
        "mlp.down_proj": (card.hidden, card.intermediate),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (card.hidden,),
        "post_attention_layernorm.weight": (card.hidden,),
    }
    for name, shape in projections.items():
        shapes[f"{name}.weight"] = shape
        if card.attention_bias if name.startswith("self_attn") else card.mlp_bias:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes
